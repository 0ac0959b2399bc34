"""Surveys: what of a model can be pruned, what stays whole and why, before anything is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from upscale.api import plan_for
from upscale.capture import Captured
from upscale.channels import Flags, Parameter, positions
from upscale.errors import AmountWarning
from upscale.flow.channel_flow import ChannelFlow, Frozen
from upscale.flow.lines import Line
from upscale.flow.liveness import find_live
from upscale.flow.relations import Reduce
from upscale.model.accepting import ordinary_tensors
from upscale.model.layers import columns, layers, weight_of
from upscale.planning import Way
from upscale.pruning.heads import heads_of
from upscale.selected.amounts import Amount
from upscale.selected.selection import Selection
from upscale.selection.options import Options
from upscale.selection.select import select_channels
from upscale.subject import Subject
from upscale.targets.runtime import pricing_for
from upscale.targets.target import Target
from upscale.tools.grouping import grouped
from upscale.tools.quiet import unwarned

SHARES = (0.10, 0.25, 0.50)


@dataclass(frozen=True, slots=True)
class LayerSurvey:
    """A layer: how wide it is, whether its input and output channels can leave, and if not why.

    `why` is about outputs, `why_inputs` about inputs; each is empty where they can leave.
    """

    name: str
    kind: str
    inputs: int
    outputs: int
    weights: int
    inputs_leave: bool
    outputs_leave: bool
    why: str
    why_inputs: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What of a model can be pruned: its layers, what freezes, and what to expect.

    `prunable` is the share of weights in layers whose inputs or outputs can leave; `expected`
    the estimated latency, as a share of the unpruned model's, by the share of channels pruned;
    nothing, if there is nothing to estimate.
    `heads` counts the heads of attention that can leave whole; `upscale.heads` says where.
    `beside` are weights that are no layer's own, such as those of a fused attention.
    """

    model: str
    layers: tuple[LayerSurvey, ...]
    beside: tuple[LayerSurvey, ...]
    unreached: tuple[str, ...]
    frozen: tuple[Frozen, ...]
    prunable: float
    heads: int
    expected: Mapping[float, float]

    def __str__(self) -> str:
        if not (self.layers or self.beside or self.unreached):
            return f"{self.model}: it has no convolution or linear, so nothing can be pruned."
        count, weights = len(self.layers), sum(layer.weights for layer in self.layers)
        lines = [
            f"{self.model}: {count} layer{'' if count == 1 else 's'} with {weights:,} weights, "
            f"{self.prunable:.1%} of them in layers that can be pruned.",
            *_stays("input", count, [(v, v.why_inputs) for v in self.layers if v.why_inputs]),
            *_stays("output", count, [(v, v.why) for v in self.layers if v.why]),
        ]
        if self.heads:
            lines.append(f"{self.heads} heads of attention can leave whole.")
        if self.beside:
            count, weights = len(self.beside), sum(each.weights for each in self.beside)
            lines.append(
                f"Beside them {count} weight{'' if count == 1 else 's'} of {weights:,} numbers "
                f"belong{'s' if count == 1 else ''} to no layer that a selection can name:"
            )
            leaves = "outputs that nobody reads any more leave, inputs stay"
            lines += _by_reason((each, each.why or leaves) for each in self.beside)
        counted = Counter(_told(each) for each in self.frozen)
        if counted:
            lines.append("Operations that keep channels whole:")
        for told, times in counted.items():
            lines.append(f"  {told} ({'once' if times == 1 else f'{times} times'}).")
        if self.unreached:
            lines.append(f"Never reached in this mode: {', '.join(self.unreached)}.")
        told = ", ".join(
            f"{1 / ratio:.2f} times as fast without {share:.0%}"
            for share, ratio in self.expected.items()
        )
        if told:
            lines.append(f"Expect, by estimate, if channels go at random: {told}.")
        return "\n".join(lines)


@ordinary_tensors()
def survey(model: nn.Module, example: Any, *, target: Target | None = None) -> Survey:
    """Say what of a model can be pruned; the model is not changed.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> [layer.outputs_leave for layer in survey(net, torch.zeros(1, 4)).layers]
    [True, False]
    """
    subject = Subject.of(model, example, numbers=False)
    way = Way("optimal", pricing_for(subject.example, target))
    plan = plan_for(subject, (Selection(kept={}),), way)
    expected = {}
    for share in SHARES if plan.estimated_us else ():
        options = Options(amount=Amount(share), importance="random")
        with unwarned(AmountWarning):  # what cannot be pruned is what a survey says anyway
            selection = select_channels(subject, options)
        pruned = plan_for(subject, (selection,), way)
        expected[share] = pruned.estimated_us / plan.estimated_us
    views, beside = _layers(subject)
    reached = {layer.name for _, layer in subject.flow.layers} | {view.name for view in views}
    weights = sum(view.weights for view in views)
    leaving = sum(v.weights for v in views if v.inputs_leave or v.outputs_leave)
    return Survey(
        model=subject.captured.name,
        layers=views,
        beside=beside,
        unreached=tuple(sorted(set(subject.weights.values()) - reached)),
        frozen=plan.frozen,
        prunable=leaving / max(1, weights),
        heads=heads_of(subject).count,
        expected=expected,
    )


def needed_rows(flow: ChannelFlow) -> Mapping[Line, Flags]:
    """What is live of every line when all layers drop all their columns."""
    return find_live(flow, {layer.layer: positions(()) for _, layer in flow.layers}).lines


def _layers(subject: Subject) -> tuple[tuple[LayerSurvey, ...], tuple[LayerSurvey, ...]]:
    """Every layer that the model reaches, and the weights it multiplies by that are no layer's."""
    model, captured, flow = subject.model, subject.captured, subject.flow
    reductions = {layer.name: layer for _, layer in flow.layers}
    needed = needed_rows(flow)

    def view(name: str, kind: str, weight: Tensor, inputs: int, relation: Reduce) -> LayerSurvey:
        inputs_leave = relation.read in flow.classes and not relation.channelwise
        outputs_leave = not bool(needed[relation.out].all())
        return LayerSurvey(
            name=name,
            kind=kind,
            inputs=inputs,
            outputs=flow.sizes[relation.out],
            weights=weight.numel(),
            inputs_leave=inputs_leave,
            outputs_leave=outputs_leave,
            why="" if outputs_leave else _why(captured, flow, relation.out.value),
            why_inputs="" if inputs_leave else _why_inputs(captured, flow, relation),
        )

    names = subject.weights
    own = tuple(
        view(name, type(layer).__name__, weight_of(layer), columns(layer), relation)
        for name, layer in layers(model).items()
        if (relation := reductions.get(names[name])) is not None
    )
    loose = {n: p for n, p in model.named_parameters() if n not in names.values()}
    beside = tuple(
        view(name, "parameter", weight, flow.sizes[relation.read], relation)
        for name, weight in loose.items()
        if (relation := reductions.get(name)) is not None
    )
    return own, beside


def _why_inputs(captured: Captured, flow: ChannelFlow, relation: Reduce) -> str:
    """Why no input channel leaves: a layer reads one each, or none that another layer makes."""
    if relation.channelwise:
        return "each belongs to one output, and leaves with it"
    given = {node.name for node in captured.graph.nodes if node.op == "placeholder"}
    makers = {value: step for step in flow.steps for value in step.makes}
    front = [relation.read.value]
    for value in front:
        if value in given:
            return "they are the model's input"
        if (step := makers.get(value)) is not None:
            if step.frozen is not None:
                return _told(step.frozen)
            if any(isinstance(v, Parameter) for v in step.reads):
                break
            front += [v for v in step.reads if v not in front]
    return "no convolution or linear makes them"


def _why(captured: Captured, flow: ChannelFlow, value: str) -> str:
    """What needs every channel of a value: the first step on its way that does."""
    front, output = {value}, next(n.name for n in captured.graph.nodes if n.op == "output")
    mixing = {step.node for step, each in flow.passes if each.whole}
    reducing = {step.node for step, layer in flow.layers if not layer.channelwise}
    for step in flow.steps:
        if not front.intersection(step.reads):
            continue
        if step.frozen is not None:
            return _told(step.frozen)
        if step.node in mixing:
            calls = captured.observed[step.node].calls
            kind = captured.kinds[step.module] if step.module else calls[-1].op
            return f"{kind} normalises over all of them"
        if step.node == output:
            return "they are the model's output"
        if step.node not in reducing:
            front.update(step.makes)
    return "something needs all of them"


def _stays(side: str, count: int, stays: Sequence[tuple[LayerSurvey, str]]) -> list[str]:
    """How many layers can drop channels of a side, and which of them cannot, by reason."""
    head = f"{count - len(stays)} of {count} layers can drop {side} channels."
    rest = f" {'This one keeps' if len(stays) == 1 else 'These keep'} all:" if stays else ""
    return [head + rest, *_by_reason(stays)]


def _by_reason(views: Iterable[tuple[LayerSurvey, str]]) -> Iterator[str]:
    """A line for each reason, with the first few names it holds for."""
    named = ((reason, view.name or "the model itself") for view, reason in views)
    for reason, names in grouped(named).items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield f"  {shown}: {reason}."


def _told(frozen: Frozen) -> str:
    where = f" at {frozen.source}" if frozen.source else ""
    return f"{frozen.operation}{where}: {frozen.because}"
