"""Surveys: what of a model can be pruned, what stays whole and why, before anything is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from upscale import reference
from upscale.api import Way, checked, plan_for, pricing_for, select_for
from upscale.capture import Captured, Example, capture
from upscale.flow.analyse import analyse
from upscale.flow.domain import ChannelFlow, Frozen, Pass, Reduce
from upscale.layers import columns, layers, settled, weight_names, weight_of
from upscale.prunable import prunable_weights
from upscale.segments import find_live
from upscale.selecting import Request
from upscale.selection.amounts import Amount
from upscale.selection.masks import Selection
from upscale.target import Target

SHARES = (0.10, 0.25, 0.50)


@dataclass(frozen=True, slots=True)
class LayerSurvey:
    """A layer: how wide it is, whether its input and output channels can leave, and if not why."""

    name: str
    kind: str
    inputs: int
    outputs: int
    weights: int
    inputs_leave: bool
    outputs_leave: bool
    why: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What of a model can be pruned: its layers, what freezes, and what to expect.

    `prunable` is the share of weights in layers whose inputs or outputs can leave; `expected`
    the estimated latency, as a share of the unpruned model's, by the share of channels pruned.
    """

    model: str
    layers: tuple[LayerSurvey, ...]
    unreached: tuple[str, ...]
    frozen: tuple[Frozen, ...]
    prunable: float
    expected: Mapping[float, float]

    def __str__(self) -> str:
        weights = sum(layer.weights for layer in self.layers)
        lines = [
            f"{self.model}: {len(self.layers)} layers with {weights:,} weights, "
            f"{self.prunable:.1%} of them in layers that can be pruned.",
        ]
        lines += _stays(self.layers, inputs=True)
        lines += _stays(self.layers, inputs=False)
        reasons: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for each in self.frozen:
            reasons[(each.operation, each.because, each.source)].append(each.layer)
        for (operation, because, source), where in reasons.items():
            lines.append(f"{operation} at {source} ({_times(len(where))}): {because}.")
        if self.unreached:
            lines.append(f"Never reached in this mode: {', '.join(self.unreached)}.")
        told = ", ".join(
            f"{1 / ratio:.2f} times as fast without {share:.0%} of channels"
            for share, ratio in self.expected.items()
        )
        lines.append(f"Expect (by estimate, random channels): {told}.")
        return "\n".join(lines)


def survey(model: nn.Module, example: Any, *, target: Target | None = None) -> Survey:
    """Say what of a model can be pruned; the model is not changed.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [layer.outputs_leave for layer in survey(net, torch.zeros(1, 4)).layers]
    [True, False]
    """
    model, gone = reference.released(settled(checked(model)))
    given = Example.of(example)
    captured = capture(model, given)
    flow = analyse(captured)
    way = Way("optimal", pricing_for(given, target))

    def estimate(selection: Selection) -> float:
        made = plan_for(model, given, captured, flow, (selection,), way, gone)
        return made.estimated_us or 0.0

    whole = Selection(kept={})
    plan = plan_for(model, given, captured, flow, (whole,), way, gone)
    base = plan.estimated_us or 1.0
    expected = {}
    for share in SHARES:
        request = Request(amount=Amount(share), importance="random")
        expected[share] = estimate(select_for(model, given, captured, flow, request, gone)) / base
    views = _layers(model, captured, flow)
    named = set(weight_names(model).values())
    reached = {r.layer[1:] for s in flow.steps for r in s.relations if isinstance(r, Reduce)}
    weights = sum(view.weights for view in views)
    leaving = sum(v.weights for v in views if v.inputs_leave or v.outputs_leave)
    return Survey(
        model=captured.name,
        layers=views,
        unreached=tuple(sorted(named - reached - {v.name for v in views})),
        frozen=plan.frozen,
        prunable=leaving / max(1, weights),
        expected=expected,
    )


def _layers(model: nn.Module, captured: Captured, flow: ChannelFlow) -> tuple[LayerSurvey, ...]:
    """Every layer that the model reaches."""
    reductions = {
        r.layer[1:]: r for step in flow.steps for r in step.relations if isinstance(r, Reduce)
    }
    nothing = np.empty(0, dtype=np.int64)
    needed = find_live(flow, {r.layer: nothing for r in reductions.values()}).lines
    prunable = prunable_weights(flow)
    names = weight_names(model)
    found = []
    for name, layer in layers(model).items():
        relation = reductions.get(names[name])
        if relation is None:
            continue
        weight = weight_of(layer)
        inputs = relation.read in flow.classes and not relation.channelwise
        outputs = not bool(needed[relation.out].all())
        why = "" if outputs else _why(captured, flow, relation.out.value)
        if not inputs and relation.layer not in prunable:
            why = why or "it reads channels that are not told apart"
        found.append(
            LayerSurvey(
                name=name,
                kind=type(layer).__name__,
                inputs=columns(layer),
                outputs=flow.size(relation.out),
                weights=weight.numel(),
                inputs_leave=inputs,
                outputs_leave=outputs,
                why=why,
            )
        )
    return tuple(found)


def _why(captured: Captured, flow: ChannelFlow, value: str) -> str:
    """What needs every channel of a value: the first step on its way that does."""
    front, output = {value}, next(n.name for n in captured.graph.nodes if n.op == "output")
    for step in flow.steps:
        if not front.intersection(step.reads):
            continue
        if step.frozen is not None:
            return f"{step.frozen.operation} at {step.frozen.source}: {step.frozen.because}"
        if any(isinstance(r, Pass) and r.whole for r in step.relations):
            calls = captured.observed[step.node].calls
            kind = captured.kinds[step.module] if step.module else calls[-1].op
            return f"{kind} normalises over all of them"
        if step.node == output:
            return "they are the model's output"
        if not any(isinstance(r, Reduce) and not r.channelwise for r in step.relations):
            front.update(step.makes)
    return "something needs all of them"


def _stays(views: tuple[LayerSurvey, ...], *, inputs: bool) -> list[str]:
    """Which layers keep all their inputs or outputs, by reason."""
    side = "inputs" if inputs else "outputs"
    stays = [v for v in views if not (v.inputs_leave if inputs else v.outputs_leave)]
    lines = [f"{len(views) - len(stays)} of {len(views)} layers can drop {side} of their choice."]
    reasons: dict[str, list[str]] = defaultdict(list)
    for view in stays:
        reason = "they read the model's input, or what has one input each" if inputs else view.why
        reasons[reason].append(view.name)
    for reason, names in reasons.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(f"  whole {side}: {shown}: {reason}.")
    return lines


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
