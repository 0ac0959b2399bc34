"""Selecting: a captured model, a criterion and an amount become a selection."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from upscale.channels import Flags, Positions, positions
from upscale.errors import AmountWarning, SelectionError
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.relations import Pass, Reduce
from upscale.flow.segments import carried_classes
from upscale.planning import Plan
from upscale.selection.amounts import Amount, Reached
from upscale.selection.choosing import MET, Chooser, Limits, Measure, Scores
from upscale.selection.contiguous import keep_contiguous
from upscale.selection.counting import Costs, channels_pruned, count
from upscale.selection.counting import positions as places
from upscale.selection.importance import Importance, Scorer, Study, importance_of, score
from upscale.selection.masks import AFTER, SIDES, Selection
from upscale.selection.units import CONSTRAINTS, Units, find_units
from upscale.subject.layers import copied, layers, weight_names, weight_of

Loss = Callable[[Any, Any], Tensor]
# Shares of parameters and macs, by name.
Exported = dict[str, float]

CHOICES = {
    "scope": ("local", "global"),
    "side": SIDES,
    "constraint": CONSTRAINTS,
    "segments": ("all", "single-branch"),
    "after": AFTER,
}


@dataclass(frozen=True, slots=True)
class Request:
    """What to select: the arguments of `upscale.select`, checked."""

    amount: Amount
    importance: str | Importance | Scorer = "l2"
    scope: str = "local"
    side: str = "input"
    constraint: str = "none"
    segments: str = "all"
    after: str = "norm"
    data: Iterable[Any] | None = None
    loss: Loss | None = None
    overrides: Mapping[str, float] | None = None
    ignore: Iterable[str] = ()
    floor: int = 1
    round_to: int = 1
    slack: float = 0.1
    within: Selection | None = None

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise SelectionError(
                    f"{name} is {getattr(self, name)!r}; it must be one of "
                    f"{', '.join(repr(value) for value in known)}"
                )
        importance_of(self.importance)
        for name, least in (("floor", 0), ("round_to", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SelectionError(f"{name} is {value!r}; it must be a whole number >= {least}")
        if not isinstance(self.slack, (int, float)) or not 0 <= self.slack < float("inf"):
            raise SelectionError(f"slack is {self.slack!r}; it must be a share, 0 or more")
        if isinstance(self.ignore, str):
            raise SelectionError(f"ignore is {self.ignore!r}; it must be a list of patterns")
        if self.constraint == "contiguous" and self.side == "output":
            raise SelectionError("the constraint 'contiguous' is of the input side only")
        if self.within is not None and self.within.side != self.side:
            raise SelectionError("within is a selection of the other side")


def select_channels(
    model: nn.Module,
    flow: ChannelFlow,
    inputs: int,
    request: Request,
    planned: Callable[[Selection], Plan],
) -> Selection:
    """Choose the channels each layer keeps.

    `inputs` is how many positional inputs the model takes; `planned` makes a plan for a
    selection, which tells what an export does without.
    """
    constraint = "segment" if request.constraint == "segment" else "none"
    units = find_units(
        flow,
        side=request.side,
        constraint=constraint,
        single_branch=request.segments == "single-branch",
    )
    own = {name: weight for name, weight in weight_names(model).items() if weight in units.of}
    # Weights that belong to no layer a selection can name have no say.
    units = units.only(frozenset(own.values()))
    limits = _limits(model, own, units, request)
    first = {weight: name for name, weight in reversed(own.items())}
    study = Study(
        # On data it is run, with hooks and in another mode; whoever uses the model sees none of it.
        model=model if request.data is None else copied(model, {}),
        names=tuple(first.values()),
        side=request.side,
        data=request.data,
        loss=request.loss,
        inputs=inputs,
        norms=partial(_norms, model, flow, first, request.side),
    )
    found = score(request.importance, study) if first else {}
    limits = replace(limits, held=limits.held | {w for w, n in first.items() if n not in found})
    scores = _scores(found, first, units, request)
    costs = count(flow, _sizes(model))

    def exported(kept: Mapping[str, Flags]) -> Exported:
        chosen = {name: np.flatnonzero(kept[weight]).tolist() for name, weight in own.items()}
        plan = planned(Selection(kept=chosen, side=request.side, after=request.after))
        return exported_shares(flow, costs, plan)

    kept = _choose(units, scores, limits, request, costs, exported)
    read: Mapping[str, Flags] = {}
    if request.constraint == "contiguous":
        windowed = keep_contiguous(flow, kept, scores, request.slack)
        kept, read = dict(windowed.kept), windowed.read
    widths = {name: len(units.of[weight]) for name, weight in own.items()}
    reached = _reached(costs, kept, widths, request, exported)
    if reached.stopped:
        warnings.warn(
            f"asked {request.amount}, reached {reached.share:.2%}: {reached.stopped}",
            AmountWarning,
            stacklevel=3,
        )
    return Selection(
        kept={name: np.flatnonzero(kept[weight]).tolist() for name, weight in own.items()},
        side=request.side,
        after=request.after,
        windows={n: np.flatnonzero(read[w]).tolist() for n, w in own.items() if w in read},
        reached=reached,
    )


def _choose(
    units: Units,
    scores: Mapping[str, Scores],
    limits: Limits,
    request: Request,
    costs: Costs,
    exported: Callable[[Mapping[str, Flags]], Exported],
) -> dict[str, Flags]:
    chooser = Chooser(units, scores, limits)
    amount = request.amount
    if request.scope == "local" and amount.measure == "channels":
        return chooser.local(amount.share, None)
    measure = _measure(costs, amount, exported)
    choose = chooser.local if request.scope == "local" else chooser.globally
    return choose(amount.share, measure)


def _measure(
    costs: Costs, amount: Amount, exported: Callable[[Mapping[str, Flags]], Exported]
) -> Measure:
    if amount.measure == "channels":
        return channels_pruned
    if getattr(amount, "exported", False):
        return lambda kept: exported(kept)[amount.measure]
    return lambda kept: costs.pruned(amount.measure, kept)


def exported_shares(flow: ChannelFlow, costs: Costs, plan: Plan) -> Exported:
    """What an export does without: shares of parameters and macs of all layers."""
    left: dict[str, float] = dict.fromkeys(costs.parameters, 0.0)
    reached = set()
    macs: dict[str, float] = defaultdict(float)
    for step in flow.steps:
        for relation in step.relations:
            name = relation.layer[1:] if isinstance(relation, Reduce) else ""
            if name not in costs.parameters or not isinstance(relation, Reduce):
                continue
            reached.add(name)
            if step.node in plan.graph.gone or step.node in plan.graph.constants:
                continue
            share = 1.0
            for axis, indices in plan.weights.cuts.get(relation.weight[1:], {}).items():
                share *= len(indices) / max(1, flow.shapes[relation.weight][axis])
            left[name] = costs.parameters[name] * share
            macs[name] += left[name] * places(flow, relation)
            gating = plan.weights.gates.get(relation.weight[1:])
            if gating is not None:
                # A gate is read once for each image.
                small = prod(map(len, plan.weights.cuts[gating.weight].values()))
                left[name], macs[name] = left[name] + small, macs[name] + small
    for name, size in costs.parameters.items():
        if name not in reached:
            left[name] = size
    return {
        "parameters": 1 - sum(left.values()) / max(1, sum(costs.parameters.values())),
        "macs": 1 - sum(macs.values()) / max(1, sum(costs.macs.values())),
    }


def _reached(
    costs: Costs,
    kept: Mapping[str, Flags],
    widths: Mapping[str, int],
    request: Request,
    exported: Callable[[Mapping[str, Flags]], Exported],
) -> Reached:
    found = Reached(
        asked=request.amount,
        channels=channels_pruned(kept),
        parameters=costs.pruned("parameters", kept),
        macs=costs.pruned("macs", kept),
        widths=widths,
    )
    if getattr(request.amount, "exported", False):
        shares = exported(kept)
        found = replace(
            found, exported_parameters=shares["parameters"], exported_macs=shares["macs"]
        )
    return replace(found, stopped=_stopped(found, kept, request))


def _stopped(found: Reached, kept: Mapping[str, Flags], request: Request) -> str:
    """Why the amount was not met, if it was not."""
    asked = request.amount.share
    most = max((1 / max(1, len(own)) for own in kept.values()), default=0.0)
    if request.scope == "global":
        most = max(2 * MET * asked, 2 / max(1, sum(len(own) for own in kept.values())))
    if found.share >= asked - most - 1e-9 or (asked and request.round_to > 1 and found.share > 0):
        return ""
    if not kept:
        return "no layer of the model can be pruned here"
    floored = [name for name, own in kept.items() if own.sum() <= max(request.floor, 1)]
    whole = [name for name, own in kept.items() if own.all()]
    because = []
    if floored:
        because.append(f"{len(floored)} layers are at their floor ({floored[0]}, ...)")
    if whole:
        because.append(f"{len(whole)} layers keep everything ({whole[0]}, ...)")
    because.append("the rest of the model cannot be pruned on this side")
    return "; ".join(because)


def _limits(model: nn.Module, own: Mapping[str, str], units: Units, request: Request) -> Limits:
    names = list(layers(model))

    def matching(pattern: str, what: str) -> list[str]:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise SelectionError(
                f"{what}: {pattern!r} matches no convolution or linear; patterns are layer names, "
                "with * for any part"
            )
        return found

    shares = {}
    for pattern, share in (request.overrides or {}).items():
        for name in matching(pattern, "overrides"):
            if name in own:
                shares[own[name]] = Amount(share).share
    held = {own[n] for pattern in request.ignore for n in matching(pattern, "ignore") if n in own}
    gone = {}
    for name, kept in request.within.kept.items() if request.within else ():
        if name in own:
            mine = np.ones(len(units.of[own[name]]), dtype=bool)
            mine[list(kept)] = False
            gone[own[name]] = np.flatnonzero(mine)
    return Limits(shares, frozenset(held), gone, request.floor, request.round_to)


def _scores(
    found: Mapping[str, Tensor], first: Mapping[str, str], units: Units, request: Request
) -> dict[str, Scores]:
    """Scores as arrays, by weight; made comparable where layers compete."""
    comparable = getattr(importance_of(request.importance), "comparable", True)
    scores = {}
    for weight, name in first.items():
        if name in found:
            own = found[name].numpy()
            mean = float(np.abs(own).mean()) if len(own) else 0.0
            scale = mean if request.scope == "global" and not comparable and mean else 1.0
            scores[weight] = own / scale
        else:
            scores[weight] = np.zeros(len(units.of[weight]))
    return scores


def _sizes(model: nn.Module) -> dict[str, int]:
    """The number of weights of every layer, by its weight's name."""
    names = weight_names(model)
    return {names[name]: weight_of(layer).numel() for name, layer in layers(model).items()}


def _norms(
    model: nn.Module, flow: ChannelFlow, first: Mapping[str, str], side: str
) -> dict[str, Tensor]:
    """For each layer the summed BatchNorm scales of each of its channels."""
    scales = {
        f"@{name}.weight": module.weight.detach().abs().double().cpu().numpy()
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.weight is not None
    }
    carried = carried_classes(flow) if scales else {}
    by_class: dict[int, float] = defaultdict(float)
    for step in flow.steps if scales else ():
        for relation in step.relations:
            if isinstance(relation, Pass) and relation.out in flow.classes:
                for line in relation.reads:
                    if line.value in scales:
                        for channel, scale in zip(
                            flow.classes[relation.out].tolist(), scales[line.value], strict=True
                        ):
                            by_class[channel] += float(scale)
    found: dict[str, Tensor] = {}
    for step in flow.steps if by_class else ():
        for relation in step.relations:
            if not isinstance(relation, Reduce) or relation.layer[1:] not in first:
                continue
            line = relation.read if side == "input" else relation.out
            classes = [carried.get(c, c) for c in flow.classes[line].tolist()]
            if all(c in by_class for c in classes):
                groups = relation.groups if side == "input" else 1
                values = torch.tensor([by_class[c] for c in classes], dtype=torch.float64)
                found[first[relation.layer[1:]]] = values.reshape(groups, -1).mean(dim=0)
    return found


def kept_columns(model: nn.Module, kept: Mapping[str, Iterable[int]]) -> dict[str, Positions]:
    """The columns each weight keeps, by the name of its value."""
    names = weight_names(model)
    return {f"@{names[layer]}": positions(tuple(own)) for layer, own in kept.items()}
