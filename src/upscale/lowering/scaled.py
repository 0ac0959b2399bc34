"""Scaled channels: a constant times one number for each image, which a gate gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import prod

from upscale.capture import Call, Captured
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.relations import Line, Pass, Relation
from upscale.flow.walk import tensors
from upscale.lowering.known import Known, Numbers

# What hands on a tensor as it is; dropout does, where it drops nothing.
PASSING = ("alias", "clone", "contiguous", "detach", "dropout", "dropout_", "feature_dropout")


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A line that is, at every place, a number times the gate's at the same position.

    The gate has one number for each position of each image; `numbers` are those of the
    `factor`, the line that it is multiplied with, NaN where that has none. A gate is `spread`
    if what it is multiplied with has more places than one on the example.
    """

    gate: Line
    factor: Line
    numbers: Numbers
    spread: bool


def find_scaled(
    captured: Captured, flow: ChannelFlow, constants: Mapping[Line, Known]
) -> dict[Line, tuple[Scaled, ...]]:
    """The lines whose constants are multiplied with a gate, and by each of which gates.

    Which lines these are depends on where constants are, not on their numbers.
    """
    finder = _Finder(captured, flow, constants)
    for step in flow.steps if constants else ():
        for relation in step.relations:
            finder.visit(step.node, relation)
    return finder.found


class _Finder:
    def __init__(
        self, captured: Captured, flow: ChannelFlow, constants: Mapping[Line, Known]
    ) -> None:
        self._captured, self._flow, self._constants = captured, flow, constants
        # What a node makes for itself cannot be read by another.
        self._given = {value for step in flow.steps for value in step.makes}
        self._expanded: dict[Line, Line] = {}
        self.found: dict[Line, tuple[Scaled, ...]] = {}

    def visit(self, node: str, relation: Relation) -> None:
        """Say what is known of what a relation makes."""
        if not isinstance(relation, Pass) or relation.whole:
            return
        call = next(c for c in self._captured.observed[node].calls if relation.out.value in c.outs)
        if call.op == "expand" and self._aligned(relation.out, *relation.reads):
            self._expanded[relation.out] = relation.reads[0]
        elif call.op in ("mul", "mul_") and len(relation.reads) == len(tensors(call)) == 2:
            self.found[relation.out] = tuple(self._products(relation))
        elif call.op in PASSING and not _drops(call) and len(relation.reads) == 1:
            self.found[relation.out] = self.found.get(relation.reads[0], ())

    def _products(self, relation: Pass) -> list[Scaled]:
        found = []
        for factor, operand in permutations(relation.reads):
            known, gate = self._constants.get(factor), self._expanded.get(operand, operand)
            aligned = self._aligned(relation.out, factor, gate)
            if known is not None and aligned and self._is_gate(gate):
                spread = self._places(relation.out) > 1
                found.append(Scaled(gate, factor, known.numbers, spread))
        return found

    def _aligned(self, *lines: Line) -> bool:
        """Whether lines lie along one axis of tensors with equally many, of one type."""
        given = [self._captured.values[line.value] for line in lines]
        kinds = {(len(info.shape), info.itemsize) for info in given}
        return len(kinds) == len({line.axis for line in lines}) == 1

    def _places(self, line: Line) -> int:
        """How many places an image has in a line's tensor."""
        shape = self._flow.shapes[line.value]
        return prod(size for axis, size in enumerate(shape) if axis not in (0, line.axis))

    def _is_gate(self, line: Line) -> bool:
        """Whether a line has one place, and other nodes can read any part of it."""
        given = line.value in self._given and line in self._flow.classes
        plain = line.axis > 0 and line not in self._flow.blocks
        return given and plain and self._places(line) == 1


def _drops(call: Call) -> bool:
    return bool(call.argument("train") and call.argument("p"))
