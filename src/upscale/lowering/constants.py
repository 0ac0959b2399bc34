"""Finding constants: follow zeros from where they are made, operation by operation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, reduce

import numpy as np
from torch import Tensor

from upscale.capture import Call, Captured, Ref
from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.relations import Carry, Fold, Line, Pass, Reduce, Relation, Select
from upscale.lowering.constant_rules import NORMS, RULES, Operands, channelwise
from upscale.lowering.known import Known


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
    is proven, by a rule for the operation that made it; what no rule knows is not constant, nor
    is what is complex: constants are real numbers.
    """
    real = {name: tensor for name, tensor in tensors.items() if not tensor.is_complex()}
    finder = _Finder(captured, flow, real, zeroed, kept)
    for step in flow.steps:
        for relation in step.relations:
            finder.visit(step.node, relation)
    return finder.found


class _Finder:
    def __init__(
        self,
        captured: Captured,
        flow: ChannelFlow,
        tensors: Mapping[str, Tensor],
        zeroed: Mapping[Line, Positions],
        kept: Mapping[str, Positions],
    ) -> None:
        self._captured, self._flow, self._tensors = captured, flow, tensors
        self._zeroed, self._kept = zeroed, kept
        self.found: dict[Line, Known] = {}

    def visit(self, node: str, relation: Relation) -> None:
        """Say what is known of what a relation makes."""
        if isinstance(relation, (Pass, Fold, Carry, Reduce, Select)):
            known = self._made(node, relation)
            if known.constant.any():
                self.found[relation.out] = known

    def _made(self, node: str, relation: Pass | Fold | Carry | Reduce | Select) -> Known:
        size = self._flow.sizes[relation.out]
        if isinstance(relation, Select):
            return self._selected(relation, size)
        if isinstance(relation, Carry):
            channels = self._flow.sizes[relation.read]
            return self._of(channels, relation.read).at(relation.channel(np.arange(size), channels))
        call = next(
            call for call in self._captured.observed[node].calls if relation.out.value in call.outs
        )
        made = Known.zeros_at(self._zero_by_parameters(relation, call), size)
        if not self._has_constants(relation) or (isinstance(relation, Pass) and relation.whole):
            return made
        operands = Operands(call, relation, partial(self._of, size), self._tensors, size)
        if isinstance(relation, Reduce):
            if not relation.channelwise:
                return made
            masked = len(relation.columns_kept(self._kept)) == 0
            return made.or_else(channelwise(operands, masked=masked))
        rule = RULES.get(call.op)
        return made if rule is None else made.or_else(rule(operands))

    def _of(self, size: int, line: Line) -> Known:
        known = self._flow.classes.get(line)
        return self.found.get(line) or Known.nothing(size if known is None else len(known))

    def _has_constants(self, relation: Pass | Fold | Reduce) -> bool:
        reads = relation.reads if isinstance(relation, Pass) else (relation.read,)
        return any(line in self.found for line in reads)

    def _selected(self, relation: Select, size: int) -> Known:
        known = Known.zeros_at(np.flatnonzero(relation.operand < 0), size)
        for index, line in enumerate(relation.reads):
            mine = relation.operand == index
            if line in self.found:
                there = self.found[line].at(relation.position[mine])
                known.numbers[mine], known.firm[mine] = there.numbers, there.firm
        return known

    def _zero_by_parameters(self, relation: Pass | Fold | Reduce, call: Call) -> Positions:
        """Positions that are zero because all that makes them is: rows and bias, or scale and
        shift."""
        lines: tuple[Line, ...] = ()
        if isinstance(relation, Reduce):
            lines = (Line(relation.weight, relation.row_axis), *relation.beside)
        elif call.op in NORMS:
            given = [call.argument(name) for name in ("weight", "bias")]
            lines = tuple(Line(ref.value, 0) for ref in given if isinstance(ref, Ref))
        if not lines or not all(line in self._zeroed for line in lines):
            return np.empty(0, dtype=np.int64)
        return reduce(np.intersect1d, [self._zeroed[line] for line in lines])
