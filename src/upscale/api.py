"""The verbs: select, mask, plan, export. Their way: subject → lowered flow → plan → export."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx, nn

from upscale import masking
from upscale.capture import Captured, Configuration, Example, collector_paused
from upscale.capture.fingerprint.digests import made_for
from upscale.errors import PlanError
from upscale.lowering.lower import lower, numbers_for
from upscale.lowering.lowered import Lowered
from upscale.model.accepting import checked, ordinary_tensors, settled, with_numbers
from upscale.model.layers import check_fits
from upscale.planning import Plan, Way, make_plan
from upscale.planning.plan import origin_of, remember, stamped
from upscale.rewrite.doubting import check_says, check_sizes, doubted
from upscale.rewrite.graph import rewrite
from upscale.rewrite.matching import captured_for, check_masks
from upscale.selected.amounts import Amount
from upscale.selected.selection import Selection
from upscale.selection.importance import Importance, Scorer
from upscale.selection.options import Loss, Options
from upscale.selection.select import select_channels
from upscale.subject import Subject, bare
from upscale.targets.runtime import multiple_for, pricing_for
from upscale.targets.target import Target


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
    round_to: int | str = 1,
    slack: float = 0.1,
    within: Selection | None = None,
    target: Target | None = None,
) -> Selection:
    """Choose the channels each layer keeps: the least important go until the amount is met.

    Parameters
    ----------
    amount
        A share of channels, or `Parameters(share)`, or `Macs(share)`.
    importance
        `"l1"`, `"l2"`, `"lamp"`, `"fpgm"`, `"bn"`, `"random"`; with `data`, `"hrank"`,
        `"activation"` and `"reconstruction"`; with `data` and `loss`, `"taylor"`; or a function
        `(weight, context)` that returns a score for each channel.
    scope
        `"local"`: every layer loses the same share. `"global"`: layers compete.
    side
        `"input"`: layers drop channels they read. `"output"`: channels they make; `after` says
        where those become zero, after the layer's BatchNorm (`"norm"`) or before (`"layer"`).
    constraint
        `"none"`: each layer drops what it likes. `"segment"`: all readers of a tensor, or all
        layers summed into it, drop the same. `"contiguous"`: each reader keeps its best within
        a window of one common order, `slack` wider than what it keeps, so that nothing is copied.
        `"heads"`: what reads attention drops whole heads, scored by what their columns score.
    segments
        `"all"`, or `"single-branch"`: only where one layer feeds one other.
    overrides, ignore
        Shares of their own for layers whose names match patterns, and layers that keep all.
    floor, round_to
        Every layer keeps so many channels at least, and a multiple of so many where it can; of
        what suits the target's convolutions, if `round_to` is `"target"`.
    within
        A selection to go on from: what it prunes stays pruned.
    target
        Where the export will run, for `round_to="target"`; like the example, if none is given.

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
    subject = Subject.of(model, example)
    options = Options(
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
        round_to=multiple_for(round_to, subject.example, target),
        slack=slack,
        within=within,
    )
    return select_channels(subject, options)


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
    model = with_numbers(settled(checked(model)))
    selections = _selections(model, selection)
    return masking.masked_by(model, selections, lambda: masking.find_norms(model, example))


@ordinary_tensors()
@collector_paused()
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
    subject = Subject.of(model, example)
    chosen = masking.zeroed(subject.model) if selection is None else selection
    way = Way(order, pricing_for(subject.example, target), widen, sums)
    return plan_for(subject, _selections(subject.model, chosen), way)


@ordinary_tensors()
@collector_paused()
def export(model: nn.Module, plan: Plan, example: Any = None) -> fx.GraphModule:
    """A new, smaller module that computes what the masked model computes.

    It trains, scripts, exports and compiles like any module; the model is not changed. A plan
    that was read from JSON needs an example again, to capture the model with, and is not trusted:
    what it exports is held against what it says, and a difference raises `PlanError`.
    """
    if not isinstance(plan, Plan):
        raise PlanError(f"export takes a plan that upscale.plan made, not {type(plan).__name__}")
    model, masks = bare(model)
    with_numbers(model)
    trusted = origin_of(plan) is not None  # made here, of what it says
    with nullcontext() if trusted else doubted(plan):
        captured = captured_for(model, plan, example)
        check_masks(masks, plan)
        if trusted:
            return export_for(model, captured, plan)
        check_sizes(plan, captured)
        pruned = export_for(model, captured, plan)

        def unrounded() -> fx.GraphModule:
            return export_for(copy.deepcopy(model).double(), captured, plan)

        rounds = plan.weights.rounds
        check_says(pruned, model, plan, Example.of(example), unrounded if rounds else None)
    return pruned


@ordinary_tensors()
@collector_paused()
def apply(model: nn.Module, plan: Plan, example: Any) -> fx.GraphModule:
    """What `export` gives, for weights that will be replaced: their numbers are not looked at."""
    model, _ = bare(model)
    folds, gates = plan.weights.folds, plan.weights.gates.values()
    ones = {name: (1.0,) * len(folding.columns) for name, folding in folds.items()}
    ones |= {gating.weight: (1.0,) * len(gating.columns) for gating in gates}
    return rewritten(model, captured_for(model, plan, example), plan, ones)


@dataclass(frozen=True)
class MadeFrom:
    """What a plan was made from: a capture, the model's configuration, and the lowered flow."""

    captured: Captured
    configuration: Configuration
    lowered: Lowered

    @cached_property
    def fingerprint(self) -> str:
        """What the model computes, as a digest."""
        return made_for(self.captured)


@collector_paused()
def plan_for(subject: Subject, selections: Sequence[Selection], way: Way) -> Plan:
    """Lower a subject and plan for what is left."""
    configuration = subject.configuration
    kept, windows = subject.columns(selections)
    lowered = Lowered(subject.flow, kept, windows, fixed=subject.captured.fixed)
    if subject.masks or any(each.side == "output" for each in selections):
        subject, lowered = lower(subject, lowered, selections, way.sums)
    plan = make_plan(lowered, way)
    remember(plan, MadeFrom(subject.captured, configuration, lowered))
    return plan


def export_for(model: nn.Module, captured: Captured, plan: Plan) -> fx.GraphModule:
    """What a plan makes of a captured model with the weights it has now."""
    numbers = {}
    folds, gates = plan.weights.folds, plan.weights.gates
    if folds or gates:
        numbers = numbers_for(model, captured, plan.masks, plan.kept, folds, gates)
    return rewritten(model, captured, plan, numbers)


def rewritten(
    model: nn.Module, captured: Captured, plan: Plan, numbers: Mapping[str, tuple[float, ...]]
) -> fx.GraphModule:
    """The export of a model in which folded columns meet the given numbers."""
    held = masking.hold_outputs(model, plan.masks.held) if plan.masks.held else model
    pruned = rewrite(held, captured, plan, numbers)
    # The export's own copy of the plan says what it was made for, and keeps no capture alive.
    pruned.meta |= {"plan": stamped(plan), "example": captured.example}
    return pruned


def _selections(
    model: nn.Module, selection: Selection | Sequence[Selection]
) -> tuple[Selection, ...]:
    """One or several selections, each checked against the model."""
    selections = tuple(selection) if isinstance(selection, (list, tuple)) else (selection,)
    for each in selections:
        check_fits(model, each)
    return selections


__all__ = ["Selection", "export", "mask", "plan", "select"]
