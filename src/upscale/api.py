"""The verbs: select, mask, plan, export."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypedDict

import torch
from torch import Tensor, fx, nn

from upscale import masking
from upscale.capture import Captured, Example, capture, find_norms
from upscale.channels import positions
from upscale.errors import PlanError, SelectionError
from upscale.flow.analyse import analyse
from upscale.flow.channel_flow import ChannelFlow
from upscale.lowering.constants import find_constants
from upscale.lowering.gating import factors_met, find_gated
from upscale.lowering.outputs import (
    additions,
    free_columns,
    never_read,
    numbers_met,
    place_masks,
    zeroed_lines,
    zeros_left,
)
from upscale.planning import (
    Plan,
    Pricing,
    gated_weight,
    make_plan,
    read_gates,
    repeat_constants,
    split_sums,
)
from upscale.rewrite.graph import rewrite
from upscale.rewrite.matching import captured_for, check_masks, remembered
from upscale.selection.amounts import Amount
from upscale.selection.importance import Importance, Scorer
from upscale.selection.masks import Selection
from upscale.selection.selecting import Loss, Request, kept_columns, select_channels
from upscale.subject.accepting import checked, with_numbers
from upscale.subject.layers import computes_weight, layers, parameter_names, weight_names
from upscale.subject.ordinary import ordinary_tensors
from upscale.subject.settling import settled
from upscale.targets.calibration import costs_of
from upscale.targets.target import ITEM_BYTES, Target
from upscale.tools.collector import collector_paused
from upscale.verify.doubting import check_says, check_sizes, doubted


@dataclass(frozen=True, slots=True)
class Way:
    """How a plan is made: the order's method, the target's prices, whether to widen, and how
    tensors are summed that lack different channels."""

    order: str
    pricing: Pricing
    widen: bool = True
    sums: str = "split"


class Options(TypedDict, total=False):
    """What `select` takes beside the amount."""

    importance: str | Importance | Scorer
    scope: str
    side: str
    constraint: str
    segments: str
    after: str
    data: Iterable[Any] | None
    loss: Loss | None
    overrides: Mapping[str, float] | None
    ignore: Iterable[str]
    floor: int
    round_to: int
    slack: float
    within: Selection | None


@ordinary_tensors()
def select(
    model: nn.Module,
    example: Any,
    *,
    amount: float | Amount,
    importance: str | Importance | Scorer = "l2",
    scope: str = "local",
    side: str = "input",
    constraint: str = "none",
    segments: str = "all",
    after: str = "norm",
    data: Iterable[Any] | None = None,
    loss: Loss | None = None,
    overrides: Mapping[str, float] | None = None,
    ignore: Iterable[str] = (),
    floor: int = 1,
    round_to: int = 1,
    slack: float = 0.1,
    within: Selection | None = None,
) -> Selection:
    """Choose the channels each layer keeps: the least important go until the amount is met.

    Parameters
    ----------
    amount
        A share of channels, or `Parameters(share)`, or `Macs(share)`.
    importance
        `"l1"`, `"l2"`, `"lamp"`, `"fpgm"`, `"bn"`, `"random"`; with `data`, `"hrank"` and
        `"activation"`; with `data` and `loss`, `"taylor"`; or a function `(weight, context)`
        that returns a score for each channel.
    scope
        `"local"`: every layer loses the same share. `"global"`: layers compete.
    side
        `"input"`: layers drop channels they read. `"output"`: channels they make; `after` says
        where those become zero, after the layer's BatchNorm (`"norm"`) or before (`"layer"`).
    constraint
        `"none"`: each layer drops what it likes. `"segment"`: all readers of a tensor, or all
        layers summed into it, drop the same. `"contiguous"`: each reader keeps its best within
        a window of one common order, `slack` wider than what it keeps, so that nothing is copied.
    segments
        `"all"`, or `"single-branch"`: only where one layer feeds one other.
    overrides, ignore
        Shares of their own for layers whose names match patterns, and layers that keep all.
    floor, round_to
        Every layer keeps so many channels at least, and a multiple of so many where it can.
    within
        A selection to go on from: what it prunes stays pruned.

    Returns
    -------
    Selection
        With `selection.reached`: the shares of channels, parameters and macs it comes to.

    Examples
    --------
    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    >>> len(select(net, torch.zeros(1, 4), amount=0.25).kept["1"])
    6
    """
    request = Request(
        amount=Amount.of(amount),
        importance=importance,
        scope=scope,
        side=side,
        constraint=constraint,
        segments=segments,
        after=after,
        data=data,
        loss=loss,
        overrides=overrides,
        ignore=ignore,
        floor=floor,
        round_to=round_to,
        slack=slack,
        within=within,
    )
    model, gone = masking.released(settled(checked(model)))
    given = Example.of(example)
    captured = capture(model, given)
    return select_for(model, given, captured, analyse(captured), request, gone)


@ordinary_tensors()
def mask(
    model: nn.Module, selection: Selection | Sequence[Selection], *, example: Any = None
) -> nn.Module:
    """A copy of a model in which everything that the selection prunes is zero, and stays so.

    It is what an export must equal. Train it, save it, load it: the masks hold. On the output
    side a layer's BatchNorm is looked for; a model that `torch.fx` cannot trace needs an
    example for that. Several selections, such as one for each side, are all applied.
    Weights that the model computes from others (`weight_norm`) are plain ones in the copy.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> mask(net, Selection(kept={"1": [0]})).get_submodule("1").weight[0, 1].item()
    0.0
    """
    model = settled(with_numbers(checked(model)))
    return masked_by(model, _selections(model, selection), example)


@ordinary_tensors()
def plan(
    model: nn.Module,
    example: Any,
    selection: Selection | Sequence[Selection] | None = None,
    *,
    order: str = "optimal",
    target: Target | None = None,
    widen: bool = True,
    sums: str = "split",
) -> Plan:
    """Decide everything an export will do, as data; nothing is changed yet.

    Without a selection, columns of weights that are all zero count as pruned. Several, such as
    one for each side, make one plan. Output masks that the model already has count too.
    The plan is made for a target, by default for what the example is like. There a layer may
    read or make a few channels more than it keeps, with zero weights, if that is faster; unless
    `widen` is false.
    `order="none"` and `sums="infill"` are baselines to compare with: channels keep their order;
    all that is added is first filled up with zeros, at run time, for the channels it lacks.
    `sums="whole"` computes those zeros instead, which is faster where little of the output is
    pruned, and removes less.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    >>> plan(net, torch.zeros(1, 4), Selection(kept={"1": [0, 5]})).copies
    0
    """
    model, gone = masking.released(settled(checked(model)))
    given = Example.of(example)
    captured = capture(model, given)
    selections = _selections(model, masking.zeroed(model) if selection is None else selection)
    way = Way(order, pricing_for(given, target), widen, sums)
    return plan_for(model, given, captured, None, selections, way, gone)


@ordinary_tensors()
def export(model: nn.Module, plan: Plan, example: Any = None) -> fx.GraphModule:
    """A new, smaller module that computes what the masked model computes.

    It trains, scripts, exports and compiles like any module; the model is not changed. A plan
    that was read from JSON needs an example again, to capture the model with, and is not trusted:
    what it exports is held against what it says, and a difference raises `PlanError`.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"export takes a plan that upscale.plan made, not {type(plan).__name__}")
    model, gone = masking.released(settled(with_numbers(checked(model))))
    with doubted(plan):
        captured = captured_for(model, plan, example)
        check_masks(gone, plan)
        if plan.source is not None:
            return _exported(model, captured, plan)
        check_sizes(plan, captured)
        pruned = _exported(model, captured, plan)

        def unrounded() -> fx.GraphModule:
            return _exported(copy.deepcopy(model).double(), captured, plan)

        check_says(pruned, model, plan, Example.of(example), unrounded if plan.rounds else None)
    return pruned


def _exported(model: nn.Module, captured: Captured, plan: Plan) -> fx.GraphModule:
    met = {}
    if plan.rounds:
        # Numbers are those of the weights exported, which may not be those planned with.
        flow = analyse(captured)
        kept = {f"@{name}": positions(own) for name, own in plan.kept.items()}
        constants = find_constants(captured, flow, _owned(model), zeroed_lines(plan), kept)
        met = numbers_met(flow, constants, plan.folds)
        met |= factors_met(captured, flow, constants, plan.gated)
    return _rewritten(model, captured, plan, met)


@ordinary_tensors()
def apply(model: nn.Module, plan: Plan, example: Any) -> fx.GraphModule:
    """What `export` gives, for weights that will be replaced: their numbers are not looked at."""
    model, _ = masking.released(settled(checked(model)))
    met = {name: (1.0,) * len(folding.columns) for name, folding in plan.folds.items()}
    met |= {gated_weight(name): (1.0,) * len(own.columns) for name, own in plan.gated.items()}
    return _rewritten(model, captured_for(model, plan, example), plan, met)


@collector_paused()
def _rewritten(
    model: nn.Module, captured: Captured, plan: Plan, met: Mapping[str, tuple[float, ...]]
) -> fx.GraphModule:
    if plan.held:
        model = masking.hold_outputs(model, plan.held)
    pruned = rewrite(model, captured, plan, met)
    pruned.meta |= {"plan": replace(plan, source=None), "example": captured.example}
    return pruned


def _selections(
    model: nn.Module, selection: Selection | Sequence[Selection]
) -> tuple[Selection, ...]:
    """One or several selections, each checked against the model."""
    selections = tuple(selection) if isinstance(selection, (list, tuple)) else (selection,)
    for each in selections:
        masking.check(model, each)
    return selections


def select_for(
    model: nn.Module,
    example: Example,
    captured: Captured,
    flow: ChannelFlow,
    request: Request,
    held: Mapping[str, tuple[int, ...]],
) -> Selection:
    """Select for a model without output masks of its own; `held` are those it came with."""
    way = Way("none", pricing_for(example, None), widen=False)

    def planned(selection: Selection) -> Plan:
        return plan_for(model, example, captured, flow, (selection,), way, held)

    return select_channels(model, flow, len(example.args) or 1, request, planned)


def masked_by(model: nn.Module, selections: Sequence[Selection], example: Any) -> nn.Module:
    masked = model
    for selection in selections:
        masked = masking.mask(masked, selection, _norms(model, selection, example))
    return masked


def _norms(model: nn.Module, selection: Selection, example: Any) -> dict[str, tuple[str, ...]]:
    """The BatchNorms after which a selection's channels are zero."""
    if selection.side == "input" or selection.after == "layer":
        return {}
    return find_norms(model, example)


@collector_paused()
def plan_for(
    model: nn.Module,
    example: Example,
    captured: Captured,
    flow: ChannelFlow | None,
    selections: Sequence[Selection],
    way: Way,
    held: Mapping[str, tuple[int, ...]],
) -> Plan:
    """Plan for a model without output masks of its own; `held` are those it came with."""
    inputs = [selection for selection in selections if selection.side == "input"]
    outputs = [selection for selection in selections if selection.side == "output"]
    chosen = reduce(operator.and_, inputs) if inputs else Selection(kept={})
    gone = dict(held)
    for selection in outputs:
        found = masking.outputs_gone(model, selection, _norms(model, selection, example))
        gone |= {name: tuple(sorted({*gone.get(name, ()), *own})) for name, own in found.items()}
    masks = place_masks(model, captured, gone)
    if masks.held:
        captured, flow = capture(masking.hold_outputs(model, masks.held), example), None
    flow = flow or analyse(captured)
    kept = kept_columns(model, chosen.kept)
    constants = find_constants(captured, flow, _owned(model), masks.zeroed, kept) if gone else {}
    freed = free_columns(model, captured, flow, constants, kept)
    gated, read = find_gated(model, captured, flow, constants, freed.kept)
    flow = read_gates(flow, gated)
    zero = {line: known.zero for line, known in constants.items()}
    flow, split = split_sums(flow, additions(captured), zero, way.sums)
    firm = {line: known.firm_numbers for line, known in constants.items()}
    flow, repeats = repeat_constants(flow, firm)
    made = make_plan(
        flow,
        read,
        way.order,
        pricing=way.pricing,
        windows=kept_columns(model, chosen.windows),
        sums=split,
        widened=way.widen,
    )
    names, owned = weight_names(model), parameter_names(model)
    used = {value for step in flow.steps for value in step.reads}
    for layer, module in layers(model).items():
        if (
            layer in chosen.kept
            and computes_weight(module)
            and names[layer] in (*made.stayed, *made.unreached)
            and any(f"@{owned[id(p)]}" in used for p in module.parameters())
        ):
            raise SelectionError(
                f"{layer} computes its weight anew in every call and nothing here can be pruned "
                "with it; make its weight permanent first, or leave it out of the selection"
            )
    masked = (names[layer] for selection in outputs for layer in selection.kept)
    made = replace(
        made,
        fixed=captured.fixed,
        unreached=tuple(sorted({*made.unreached, *never_read(flow, masked)})),
        masks=gone,
        zeros=zeros_left(flow, made, masks),
        zeroed=masks.by_parameter,
        held=masks.held,
        folds=freed.folds,
        gated=gated,
        repeats=repeats,
    )
    return remembered(made, model, captured)


def pricing_for(example: Example, target: Target | None) -> Pricing:
    """What to reckon with on a target; the example's own, if none is given."""
    like = target_like(example)
    target = target or like
    return Pricing(target, costs_of(target), target.batch / like.batch)


def target_like(example: Example) -> Target:
    """The target that an example speaks of: its batch, memory format and dtype."""
    first = next((x for x in example.tensors if x.is_floating_point()), None)
    if first is None:
        return Target(threads=torch.get_num_threads())
    last = first.dim() == 4 and not first.is_contiguous()
    last = last and first.is_contiguous(memory_format=torch.channels_last)
    dtype = str(first.dtype).removeprefix("torch.")
    return Target(
        device=first.device.type,
        memory_format="channels_last" if last else "contiguous",
        batch=max(1, first.shape[0]) if first.dim() else 1,
        threads=torch.get_num_threads(),
        dtype=dtype if dtype in ITEM_BYTES else "float32",
    )


def _owned(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer, by the name of its value."""
    names = parameter_names(model)
    return {f"@{names[id(tensor)]}": tensor for tensor in (*model.parameters(), *model.buffers())}


__all__ = ["Selection", "export", "mask", "plan", "select"]
