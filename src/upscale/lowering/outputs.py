"""Output masks: where they can be written into parameters, and which columns they free."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn
from torch.utils._pytree import tree_leaves

from upscale.capture import Call, Captured, Observed, home
from upscale.channels import Positions, positions
from upscale.errors import PlanError, SelectionError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.relations import Line, Reduce
from upscale.flow.walk import tensors
from upscale.lowering.constant_rules import pads
from upscale.lowering.known import Known
from upscale.planning import Folding, Plan
from upscale.subject.layers import (
    KINDS,
    column_axis,
    computes_weight,
    parameter_names,
    stock_class,
)


@dataclass(frozen=True, slots=True)
class Masks:
    """Channels that are zero after modules: by zeros in parameters, or `held` at run time.

    `zeroed` are the positions along an axis of each parameter that become zero.
    """

    zeroed: Mapping[Line, Positions]
    held: Mapping[str, tuple[int, ...]]

    @property
    def by_parameter(self) -> dict[str, dict[int, tuple[int, ...]]]:
        """What becomes zero, by the parameters' names."""
        return {
            line.value[1:]: {line.axis: tuple(own.tolist())} for line, own in self.zeroed.items()
        }


def place_masks(model: nn.Module, captured: Captured, gone: Mapping[str, tuple[int, ...]]) -> Masks:
    """Write masks into the parameters of modules that nothing else uses; the rest is held."""
    names = parameter_names(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    # A module may have several names, and a mask under each.
    masked: dict[int, tuple[int, ...]] = {}
    for where, own in gone.items():
        before = masked.get(id(modules[where]), ())
        masked[id(modules[where])] = tuple(sorted({*before, *own}))
    readers: dict[str, list[nn.Module | None]] = defaultdict(list)
    called = set()
    for node in captured.graph.nodes:
        module = modules.get(home(node))
        called.add(id(module))
        for value in _parameters_read(captured.observed[node.name]):
            readers[value].append(module)

    def alone(line: Line, channels: tuple[int, ...]) -> bool:
        """Whether all that reads a parameter is masked alike."""
        return all(
            module is not None
            and masked.get(id(module)) == channels
            and line in _lines(module, names)
            for module in readers[line.value]
        )

    zeroed: dict[Line, Positions] = {}
    held = {}
    for where in gone:
        module = modules[where]
        channels = masked[id(module)]
        lines = _lines(module, names) if id(module) in called else ()
        if lines and all(alone(line, channels) for line in lines):
            zeroed |= dict.fromkeys(lines, np.array(channels, dtype=np.int64))
        elif channels and (
            id(module) in called
            or any(f"@{names[id(tensor)]}" in readers for tensor in module.parameters())
        ):
            held[where] = channels
    if "" in held:
        raise SelectionError(
            "the model is itself the layer whose outputs are pruned; put it into an nn.Sequential"
        )
    return Masks(zeroed, held)


def _parameters_read(observed: Observed) -> set[str]:
    read = {value for call in observed.calls for value in tensors(call)}
    read.update(x for x in tree_leaves(dict(observed.reads)) if isinstance(x, str))
    return {value for value in read if value.startswith("@")}


def _lines(module: nn.Module, names: Mapping[int, str]) -> tuple[Line, ...]:
    """The parameters' axes along which zeros make a module's output channels zero, if any do."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if module._forward_hooks or weight is None:
        return ()
    if isinstance(module, KINDS):
        if computes_weight(module) or (column_axis(module) == 0 and module.groups != 1):
            return ()
        rows = Line(f"@{names[id(weight)]}", 1 - column_axis(module))
        return (rows,) if bias is None else (rows, Line(f"@{names[id(bias)]}", 0))
    if stock_class(module) is not None and bias is not None:
        return tuple(Line(f"@{names[id(tensor)]}", 0) for tensor in (weight, bias))
    return ()


def zeroed_lines(plan: Plan) -> dict[Line, Positions]:
    """What a plan makes zero, by the parameters' axes."""
    return {
        Line(f"@{name}", axis): positions(own)
        for name, by_axis in plan.zeroed.items()
        for axis, own in by_axis.items()
    }


def zeros_left(flow: ChannelFlow, plan: Plan, masks: Masks) -> dict[str, tuple[int, ...]]:
    """The rows of weights that are zero and are computed all the same."""
    run = {value for step in flow.steps if step.node not in plan.gone for value in step.reads}
    left = {}
    for line, gone in masks.zeroed.items():
        weight = line.value[1:]
        here = plan.cuts.get(weight, {}).get(line.axis)
        rows = gone if here is None else np.intersect1d(gone, here)
        if line.value in run and len(rows) and weight.endswith("weight"):
            left[weight] = tuple(rows.tolist())
    return left


def never_read(flow: ChannelFlow, weights: Iterable[str]) -> set[str]:
    """Those of the weights that nothing in the captured mode reads."""
    read = {value for step in flow.steps for value in step.reads}
    return {weight for weight in weights if f"@{weight}" not in read}


@dataclass(frozen=True, slots=True)
class Freed:
    """The columns each weight still keeps, and how the numbers the others met are made up for."""

    kept: Mapping[str, Positions]
    folds: Mapping[str, Folding]


def free_columns(
    model: nn.Module,
    captured: Captured,
    flow: ChannelFlow,
    constants: Mapping[Line, Known],
    kept: Mapping[str, Positions],
) -> Freed:
    """Take away columns that always meet one number.

    Zero needs no making up for. Other numbers add to the bias, if the layer does not pad what
    it reads; else one channel is read for all, as each is a multiple of it.
    """
    uses: dict[str, list[tuple[Step, Reduce]]] = defaultdict(list)
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and relation.layer.startswith("@"):
                uses[relation.layer].append((step, relation))
    readers = Counter(value for step in flow.steps for value in step.reads)
    found, folds = dict(kept), {}
    for layer, steps in uses.items():
        met = [constants.get(relation.read) for _, relation in steps]
        if any(known is None for known in met) or steps[0][1].channelwise:
            continue
        alive = np.logical_or.reduce(
            [~k.zero.reshape(steps[0][1].groups, -1).all(axis=0) for k in met if k is not None]
        )
        own = steps[0][1].columns_kept(kept)
        found[layer] = own[alive[own]]
        step, relation = steps[0]
        if relation.groups == 1 and relation.weight == layer and readers[layer] == 1:
            known = constants[relation.read]
            columns = found[layer][known.constant[found[layer]]]
            folding = _folding(model, captured, step, relation, columns, known, readers)
            if folding is not None:
                folds[layer[1:]] = folding
                gone = [column for column in folding.columns if column != folding.into]
                found[layer] = np.setdiff1d(found[layer], gone)
    return Freed(found, folds)


def _folding(
    model: nn.Module,
    captured: Captured,
    step: Step,
    relation: Reduce,
    columns: Positions,
    known: Known,
    readers: Mapping[str, int],
) -> Folding | None:
    """How to make up for columns that meet one number each, if that saves any."""
    call = next(c for c in captured.observed[step.node].calls if relation.out.value in c.outs)
    padded = pads(call)
    layer = None if step.module is None else model.get_submodule(step.module)
    if not isinstance(layer, KINDS) or computes_weight(layer):
        return None
    if not padded and all(readers[line.value] == 1 for line in relation.beside):
        into = None
    elif (known.numbers[columns] == 0).all():
        into, padded = None, True
    else:
        into = int(columns[np.abs(known.numbers[columns]).argmax()])
    if len(columns) <= (into is not None):
        return None
    return Folding(tuple(columns.tolist()), into, padded)


def additions(captured: Captured) -> frozenset[str]:
    """The nodes that do nothing but add two tensors of one type."""

    def adds(call: Call) -> bool:
        sizes = {captured.values[value].itemsize for value in (*tensors(call), *call.outs)}
        two = len(tensors(call)) == 2 and len(sizes) == 1
        return two and call.op in ("add", "add_") and call.argument("alpha") == 1

    return frozenset(
        name
        for name, observed in captured.observed.items()
        if len(observed.calls) == 1 and adds(observed.calls[0])
    )


def numbers_met(
    flow: ChannelFlow, constants: Mapping[Line, Known], folds: Mapping[str, Folding]
) -> dict[str, tuple[float, ...]]:
    """The numbers that the folded columns of each weight meet, as the constants now are."""
    found = {}
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and relation.layer[1:] in folds:
                folding = folds[relation.layer[1:]]
                known = constants.get(relation.read)
                met = () if known is None else known.numbers[list(folding.columns)].tolist()
                lead = 1.0 if folding.into is None else met[folding.columns.index(folding.into)]
                lost = folding.into is None and folding.pads and any(met)
                if not met or lead == 0 or lost or any(number != number for number in met):
                    raise PlanError(
                        f"the plan was made for other weights: {relation.layer[1:]} no longer "
                        "reads the constants it counted on; make the plan again"
                    )
                found[relation.layer[1:]] = tuple(met)
    return found
