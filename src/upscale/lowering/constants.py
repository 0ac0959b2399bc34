"""Finding constants: follow zeros from where they are made, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial, reduce

import numpy as np
from torch import Tensor

from upscale.capture import Call, Captured
from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.known import Known
from upscale.flow.relations import Line, Reduce, Relation
from upscale.ops.operands import Operands
from upscale.ops.table import OPERATIONS


def find_constants(
    captured: Captured,
    flow: ChannelFlow,
    tensors: Mapping[str, Tensor],
    zeroed: Mapping[Line, Positions],
    kept: Mapping[str, Positions],
) -> dict[Line, Known]:
    """The lines with channels that hold one number whatever the input, and these numbers.

    `zeroed` are the positions at which parameters are zero; `tensors` the parameters and
    buffers, by the names of their values; `kept` the columns that weights keep. Every number
    is proven, by the constant rule of the operation that made it; an operation without one makes
    no constants, nor does one on complex numbers: constants are real.
    """
    real = {name: tensor for name, tensor in tensors.items() if not tensor.is_complex()}
    constants = _Constants(captured, flow, real, zeroed, kept)
    for step in flow.steps:
        for relation in step.relations:
            constants.visit(step.node, relation)
    return constants.lines


@dataclass(slots=True)
class _Constants:
    captured: Captured
    flow: ChannelFlow
    tensors: Mapping[str, Tensor]
    zeroed: Mapping[Line, Positions]
    kept: Mapping[str, Positions]
    lines: dict[Line, Known] = field(default_factory=dict)

    def visit(self, node: str, relation: Relation) -> None:
        """Note what is known of what a relation makes."""
        if relation.out is None:
            return
        size, moved = self.flow.sizes[relation.out], relation.moved(self.flow.sizes)
        if moved is None:
            call = self.captured.observed[node].making(relation.out.value)
            known = self._computed(relation, size, call)
        else:
            known = self._moved(relation.reads, size, *moved)
        if known.constant.any():
            self.lines[relation.out] = known

    def _computed(self, relation: Relation, size: int, call: Call) -> Known:
        facts = OPERATIONS[call.op]
        made = Known.zeros_at(self._zero_by_parameters(relation, call), size)
        meets = any(line in self.lines for line in relation.reads)
        if facts.constants is None or relation.mixes or not meets:
            return made
        masked = relation.reads_nothing(self.kept)
        operands = Operands(call, relation, partial(self._of, size), self.tensors, size, masked)
        return made.or_else(facts.constants(operands))

    def _of(self, size: int, line: Line) -> Known:
        classes = self.flow.classes.get(line)
        return self.lines.get(line) or Known.nothing(size if classes is None else len(classes))

    def _moved(
        self, reads: tuple[Line, ...], size: int, operand: Positions, position: Positions
    ) -> Known:
        known = Known.zeros_at(np.flatnonzero(operand < 0), size)
        for index, line in enumerate(reads):
            mine = operand == index
            if line in self.lines:
                there = self.lines[line].at(position[mine])
                known.numbers[mine], known.firm[mine] = there.numbers, there.firm
        return known

    def _zero_by_parameters(self, relation: Relation, call: Call) -> Positions:
        """Positions that are zero as all that makes them is: rows and bias, or scale and shift."""
        lines: list[Line] = []
        if isinstance(relation, Reduce):
            lines = list(relation.cuts)
        elif OPERATIONS[call.op].normalises:
            lines = [Line(value, 0) for value in call.named("weight", "bias")]
        if not lines or not all(line in self.zeroed for line in lines):
            return np.empty(0, dtype=np.int64)
        return reduce(np.intersect1d, [self.zeroed[line] for line in lines])
