"""Folding constants: columns that always meet one number leave, and what they added is made up for.

A column that meets 0.5 everywhere adds half of itself to each row, so the bias can do that. Where
the layer pads what it reads, borders see zeros instead: then one channel is read for all of them,
as each is a multiple of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import nn

from upscale.capture import Captured
from upscale.channels import Parameter, Positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.known import Known
from upscale.flow.relations import Line, Reduce
from upscale.lowering.lowered import Folding, Lowered
from upscale.model.layers import KINDS, computes_weight
from upscale.ops.layers import pads

OTHER_WEIGHTS = (
    "the plan was made for other weights: {} no longer reads the constants it counted on; make the "
    "plan again"
)


def fold_constants(
    lowered: Lowered, model: nn.Module, captured: Captured, constants: Mapping[Line, Known]
) -> Lowered:
    """Take away columns that always meet one number. Zero needs no making up for."""
    uses: dict[str, list[tuple[Step, Reduce]]] = defaultdict(list)
    for step, layer in lowered.flow.layers:
        if isinstance(layer.layer, Parameter):
            uses[layer.layer].append((step, layer))
    readers = Counter(value for step in lowered.flow.steps for value in step.reads)
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
