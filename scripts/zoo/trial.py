"""The trial of one model: prune it, compare, and check that comparing shows anything."""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

import upscale
from scripts.zoo.prunable import attends, frozen_shares, prunable_share, weights_of
from trials.lively import Liveliness, Shape, make_lively, tell_channels_apart
from trials.masks import random_selection
from upscale.capture import Example, capture
from upscale.channels import Parameter
from upscale.flow.analyse import analyse
from upscale.flow.channel_flow import ChannelFlow
from upscale.model.layers import layers, weight_of
from upscale.verify import TOLERANCE, compare
from upscale.zoo import import_torchvision, torchvision_model

SIZES = (64, 96, 224)
IMAGES, IMAGES_OF_OUTPUTS = 4, 2
MOST_PLAN_SECONDS = 60.0
LEAST_VARIATION = 1e-2
LEAST_MOVE = 1e-5
LEAST_SEEN = 1e-7
LEAST_PRUNABLE = 0.95
SWAPPED_LAYERS = 4
SWAPS = 16

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Case:
    """A share of channels that every layer drops on some side; some drop all if `empty`."""

    share: float
    empty: bool = False
    sides: tuple[str, ...] = ("input",)

    @property
    def name(self) -> str:
        where = "" if self.sides == ("input",) else f" {' and '.join(self.sides)}"
        return f"{self.share:.0%}{where}{', some empty' if self.empty else ''}"

    @property
    def images(self) -> int:
        """On how many images to compare; fewer where the time of more cases adds up."""
        return IMAGES if self.sides == ("input",) else IMAGES_OF_OUTPUTS


CASES = {
    "inputs": (Case(0.25), Case(0.75)),
    "outputs": (Case(0.25, sides=("output",)), Case(0.75, sides=("output",))),
    "both": (Case(0.25, sides=("input", "output")),),
}
EMPTY_CASE = Case(0.25, empty=True)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case of one model gave.

    `to_rounding`, `to_nudge` and `variation` are the masked model's `Liveliness`, `swaps_seen`
    the least relative error that swapped channels made (see `least_seen`). `reads` counts the
    uses of a tensor with channels by an operation of the export, `copies` those of them that
    gather or copy by runs.
    """

    case: str
    sides: tuple[str, ...]
    status: str
    relative_error: float
    to_rounding: float
    to_nudge: float
    variation: float
    swaps_seen: float
    layers_pruned: int
    parameters_left: float
    copies: int
    reads: int
    plan_seconds: float
    export_seconds: float


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What one model gave: what can be pruned of it, and its cases.

    `prunable` is the share of the weights of convolutions and linears that lie in prunable
    layers (see `prunable_weights`), `frozen` the share of all parameters that an operation
    without a rule keeps whole, by operation. Layers that evaluation never reaches count in
    neither.
    """

    model: str
    attends: bool
    example: Shape
    compared: Shape
    layers: int
    unreached: int
    prunable: float
    frozen: Mapping[str, float]
    cases: tuple[CaseResult, ...]
    peak_mib: float


def try_model(name: str, cases: Iterable[Case], seed: int) -> ModelResult:
    """Prune one model in every case and compare."""
    model = make_model(name, seed)
    sizes = (*SIZES, *native_sizes(name))
    example = accepted(model, ((1, 3, size, size) for size in sizes))
    height, width = example[2:]
    # An export may refuse sizes on which the model would decide otherwise than on the example.
    whole = upscale.plan(model, torch.randn(example), upscale.Selection(kept={}))
    compared = accepted(
        upscale.export(model, whole), ((IMAGES, 3, height, width + 32), (IMAGES, 3, height, width))
    )
    del whole
    captured = capture(model, Example.of(torch.randn(example)))
    flow = analyse(captured)
    read = {value for step in flow.steps for value in step.reads}
    weights: set[str] = {Parameter(weight) for weight in weights_of(model)}
    unreached = weights - read
    count = len(weights_of(model)) - len(unreached)
    prunable = prunable_share(model, flow, unreached)
    frozen = frozen_shares(model, captured, flow, unreached)
    del model
    results = []
    for case in cases:
        here = (case.images, *compared[1:])
        results.append(try_case(name, case, seed, flow, example, here))
        gc.collect()
    return ModelResult(
        model=name,
        attends=attends(captured),
        example=example,
        compared=compared,
        layers=count,
        unreached=len(unreached),
        prunable=prunable,
        frozen=frozen,
        cases=tuple(results),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def try_case(
    name: str, case: Case, seed: int, flow: ChannelFlow, example: Shape, compared: Shape
) -> CaseResult:
    """Prune in one case, and compare.

    Models that are done with are collected at once, here and after: graph modules hold on to
    themselves, and the largest models leave no room for another copy.
    """
    pruned = prune(name, case, seed, example, compared)
    gc.collect()
    exported, masked, plan = pruned.exported, pruned.masked, pruned.plan
    # Whether a comparison shows anything is measured here by other means.
    error = compare(exported, masked, Example.of(pruned.inputs)).relative_error or 0.0
    left = {weight: p.numel() for weight, p in exported.named_parameters()}
    before = {weight: p.numel() for weight, p in masked.named_parameters()}
    weights = weights_of(masked).keys() - set(plan.report.unreached)
    del masked, pruned.masked
    seen = least_seen(exported.double(), pruned.inputs[:1], seed)
    return CaseResult(
        case=case.name,
        sides=case.sides,
        status=judge(case, error, pruned.lively, seen, pruned.plan_seconds),
        relative_error=error,
        to_rounding=pruned.lively.to_rounding,
        to_nudge=pruned.lively.to_nudge,
        variation=pruned.lively.variation,
        swaps_seen=seen,
        layers_pruned=sum(w not in left or left[w] < before[w] for w in weights),
        parameters_left=sum(left.values()) / sum(before.values()),
        copies=plan.copies,
        reads=reads_left(flow, plan),
        plan_seconds=pruned.plan_seconds,
        export_seconds=pruned.export_seconds,
    )


@dataclass(slots=True)
class Pruned:
    """A model exported and masked, the inputs to compare them on, and how that went."""

    exported: nn.Module
    masked: nn.Module
    plan: upscale.Plan
    inputs: Tensor
    lively: Liveliness
    plan_seconds: float
    export_seconds: float


def prune(name: str, case: Case, seed: int, example: Shape, compared: Shape) -> Pruned:
    """Select, plan, export and mask; the model itself goes before its float64 copies come."""
    lively = make_lively(
        lambda: make_model(name, seed), lambda model: random_selections(model, case, seed), compared
    )
    model, selections = lively.model, lively.selections
    plan, plan_seconds = timed(lambda: upscale.plan(model, torch.randn(example), selections))
    exported, export_seconds = timed(lambda: upscale.export(model, plan))
    if plan.weights.rounds:
        # What is folded is rounded to the weights' own precision; compare without that.
        exported = upscale.export(model.double(), plan)
        model.float()
    masked = upscale.mask(model, selections)
    return Pruned(
        exported, masked, plan, lively.inputs, lively.measured, plan_seconds, export_seconds
    )


def judge(case: Case, error: float, lively: Liveliness, seen: float, plan_seconds: float) -> str:
    """`exact`, or what is wrong: `wrong`, `slow`, or that the comparison shows nothing.

    It shows nothing where the output is `constant` over images, or where it is `blind` to
    swapped channels. Layers that keep nothing may make it so; that is no fault.
    """
    if not error <= TOLERANCE:
        return "wrong"
    if not case.empty:
        if lively.variation < LEAST_VARIATION or lively.to_nudge < LEAST_MOVE:
            return "constant"
        if seen < LEAST_SEEN:
            return "blind"
    return "exact" if plan_seconds <= MOST_PLAN_SECONDS else "slow"


@torch.no_grad()
def least_seen(exported: nn.Module, inputs: Tensor, seed: int) -> float:
    """The relative error that the least visible of a few layers makes if its channels are swapped.

    The layers lie evenly between the first and the last. In each, two output channels trade
    their weights, again with others if nothing comes of it: many channels are kept though nobody
    reads them, in a grouped convolution all of a group that keeps one.
    """
    generator = random.Random(seed)
    inputs = inputs.double()
    plain = exported(inputs)
    rows = {layer: rows_of(layer) for layer in layers(exported).values()}
    swappable = [layer for layer in rows if len(rows[layer]) > 1]
    last = len(swappable) - 1
    chosen = {round(at * last / (SWAPPED_LAYERS - 1)) for at in range(SWAPPED_LAYERS)}
    least = float("inf")
    for layer in (swappable[at] for at in sorted(chosen)):
        seen = 0.0
        for _ in range(SWAPS):
            one, other = generator.sample(rows[layer], 2)
            swap_rows(layer, one, other)
            seen = max(seen, float((exported(inputs) - plain).abs().max() / plain.abs().max()))
            swap_rows(layer, one, other)
            if seen >= LEAST_SEEN:
                break
        least = min(least, seen)
    return least


def rows_of(layer: nn.Module) -> list[int]:
    """The rows of a layer's weight that are not zero, as those of masked outputs are."""
    return torch.nonzero(weight_of(layer).flatten(1).any(1)).flatten().tolist()


@torch.no_grad()
def swap_rows(layer: nn.Module, one: int, other: int) -> None:
    """Let two rows of a layer's weight trade places: a wrong export."""
    weight = weight_of(layer)
    weight[[one, other]] = weight[[other, one]]


def make_model(name: str, seed: int) -> nn.Module:
    """A model with random weights and channels that all differ; the same for the same seed."""
    torch.manual_seed(seed)
    model = torchvision_model(name)
    tell_channels_apart(model)
    return model


def timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """What an action gives and the processor seconds it took, on one thread."""
    start = time.process_time()
    result = action()
    return result, time.process_time() - start


def native_sizes(name: str) -> tuple[int, ...]:
    """The image sizes that a model's published weights were made for, smallest first."""
    weights = import_torchvision().models.get_model_weights(name)
    return tuple(sorted({weight.transforms.keywords["crop_size"] for weight in weights}))


def accepted(model: nn.Module, shapes: Iterable[Shape]) -> Shape:
    """The first shape of input that a model takes."""
    complaints = []
    for shape in shapes:
        try:
            with torch.inference_mode():
                model(torch.randn(shape))
        except Exception as error:  # a model may refuse a size by any exception
            complaints.append(f"{shape}: {error}")
        else:
            return shape
    raise SystemExit("the model takes none of " + "; ".join(complaints))


def random_selections(model: nn.Module, case: Case, seed: int) -> tuple[upscale.Selection, ...]:
    """A random selection for each side of a case."""
    generator = random.Random(f"{seed} {case.name}")
    return tuple(
        random_selection(model, case.share, generator, side=side, even=True, empty=case.empty)
        for side in case.sides
    )


def reads_left(flow: ChannelFlow, plan: upscale.Plan) -> int:
    """How often an operation of the export reads a tensor that has channels."""
    return len(plan.graph.joins) + sum(
        not isinstance(value, Parameter) and bool(flow.lines.get(value, ()))
        for step in flow.steps
        if step.executed and not step.shape_only and step.node not in plan.graph.gone
        for value in step.reads
    )
