"""Scaled channels: a constant times one number for each image, which a gate gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from math import prod

from upscale.capture import Captured
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.known import Known, Numbers
from upscale.flow.relations import Line, Pass, Relation
from upscale.ops.pointwise import drops
from upscale.ops.table import OPERATIONS


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
    products = _Products(captured, flow, constants)
    for step in flow.steps if constants else ():
        for relation in step.relations:
            products.visit(step.node, relation)
    return products.lines


class _Products:
    def __init__(
        self, captured: Captured, flow: ChannelFlow, constants: Mapping[Line, Known]
    ) -> None:
        self._captured, self._flow, self._constants = captured, flow, constants
        # What a node makes for itself cannot be read by another.
        self._given = {value for step in flow.steps for value in step.makes}
        self._expanded: dict[Line, Line] = {}
        self.lines: dict[Line, tuple[Scaled, ...]] = {}

    def visit(self, node: str, relation: Relation) -> None:
        """Note the gates that what a relation makes is multiplied with."""
        if not isinstance(relation, Pass) or relation.whole:
            return
        call = self._captured.observed[node].making(relation.out.value)
        operation = OPERATIONS[call.op]
        if operation.broadcasts and self._aligned(relation.out, *relation.reads):
            self._expanded[relation.out] = relation.reads[0]
        elif operation.multiplies and len(relation.reads) == len(call.reads) == 2:
            self.lines[relation.out] = tuple(self._products(relation))
        elif operation.hands_on and not drops(call) and len(relation.reads) == 1:
            self.lines[relation.out] = self.lines.get(relation.reads[0], ())

    def _products(self, relation: Pass) -> list[Scaled]:
        products = []
        for factor, operand in permutations(relation.reads):
            known, gate = self._constants.get(factor), self._expanded.get(operand, operand)
            aligned = self._aligned(relation.out, factor, gate)
            if known is not None and aligned and self._is_gate(gate):
                spread = self._places(relation.out) > 1
                products.append(Scaled(gate, factor, known.numbers, spread))
        return products

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
