"""Constants: zeros are followed from where masks make them, operation by operation, and columns
that always meet one number leave.

A column that meets 0.5 everywhere adds half of itself to each row, so the bias can do that. Where
the layer pads what it reads, borders see zeros instead: then one channel is read for all of them,
as each is a multiple of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy as np
from torch import Tensor, nn

from upscale.capture import Call, Captured
from upscale.channels import Parameter, Positions, positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.known import Known
from upscale.flow.lines import Line
from upscale.flow.relations import Reduce, Relation
from upscale.lowering.lowered import Folding, Lowered, Masks
from upscale.model.layers import KINDS, computes_weight, parameter_names
from upscale.ops.layers import pads
from upscale.ops.operands import Operands
from upscale.ops.table import OPERATIONS

OTHER_WEIGHTS = (
    "the plan was made for other weights: {} no longer reads the constants it counted on; make the "
    "plan again"
)


def find_constants(
    flow: ChannelFlow,
    model: nn.Module,
    captured: Captured,
    masks: Masks,
    kept: Mapping[str, Positions],
) -> dict[Line, Known]:
    """The lines with channels that masks make one number whatever the input, and these numbers.

    `kept` are the columns that weights keep. Every number is proven, by the constant rule of the
    operation that made it; an operation without one makes no constants, nor does one on complex
    numbers: constants are real.
    """
    names = parameter_names(model)
    owned = (*model.parameters(), *model.buffers())
    real: dict[str, Tensor] = {Parameter(names[id(x)]): x for x in owned if not x.is_complex()}
    zeroed = {
        Line(Parameter(name), axis): positions(zeros)
        for name, by_axis in masks.zeroed.items()
        for axis, zeros in by_axis.items()
    }
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


def fold_constants(
    lowered: Lowered, model: nn.Module, captured: Captured, constants: Mapping[Line, Known]
) -> Lowered:
    """Take away columns that always meet one number. Zero needs no making up for."""
    uses: dict[str, list[tuple[Step, Reduce]]] = defaultdict(list)
    for step, layer in lowered.flow.layers:
        if isinstance(layer.layer, Parameter):
            uses[layer.layer].append((step, layer))
    readers = lowered.flow.uses
    kept, folds = dict(lowered.kept), {}
    for weight, calls in uses.items():
        step, layer = calls[0]
        met = [constants[each.read] for _, each in calls if each.read in constants]
        if len(met) < len(calls) or layer.channelwise:
            continue
        alive = np.logical_or.reduce(
            [~known.zero.reshape(layer.groups, -1).all(axis=0) for known in met]
        )
        columns = layer.columns_kept(lowered.kept)
        kept[weight] = columns = columns[alive[columns]]
        if layer.groups == 1 and layer.weight == weight and readers[weight] == 1:
            fixed = columns[met[0].constant[columns]]
            folding = _folding(model, captured, step, layer, fixed, met[0], readers)
            if folding is not None:
                folds[layer.name] = folding
                gone = [column for column in folding.columns if column != folding.into]
                kept[weight] = np.setdiff1d(columns, gone)
    return replace(lowered, kept=kept, folds=folds)


def _folding(
    model: nn.Module,
    captured: Captured,
    step: Step,
    layer: Reduce,
    columns: Positions,
    known: Known,
    readers: Mapping[str, int],
) -> Folding | None:
    """How to make up for columns that meet one number each, if that saves any."""
    call = captured.observed[step.node].making(layer.out.value)
    padded = pads(call)
    module = None if step.module is None else model.get_submodule(step.module)
    if not isinstance(module, KINDS) or computes_weight(module):
        return None
    if not padded and all(readers[line.value] == 1 for line in layer.beside):
        into = None
    elif (known.numbers[columns] == 0).all():
        into, padded = None, True
    else:
        into = int(columns[np.abs(known.numbers[columns]).argmax()])
    if len(columns) <= (into is not None):
        return None
    return Folding(tuple(columns.tolist()), into, padded)


def numbers_met(
    flow: ChannelFlow, constants: Mapping[Line, Known], folds: Mapping[str, Folding]
) -> dict[str, tuple[float, ...]]:
    """The numbers that the folded columns of each weight meet, as the constants now are."""
    numbers = {}
    for _, layer in flow.layers:
        folding = folds.get(layer.name)
        if folding is not None:
            known = constants.get(layer.read)
            met = () if known is None else known.numbers[list(folding.columns)].tolist()
            lead = 1.0 if folding.into is None else met[folding.columns.index(folding.into)]
            lost = folding.into is None and folding.pads and any(met)
            if not met or lead == 0 or lost or any(number != number for number in met):
                raise PlanError(OTHER_WEIGHTS.format(layer.name))
            numbers[layer.name] = tuple(met)
    return numbers
