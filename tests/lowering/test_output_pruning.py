"""Output pruning: layers drop channels they make, and the export computes what the mask shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.comparing import relative_error
from trials.drafts import whatever_it_costs
from trials.exactly import exported_exactly
from trials.lively import calm, enliven, images
from trials.masks import random_selection
from trials.nets import NETS, TRACED, Plain, Residual, conv, image
from trials.networks import EXPECTED_REFUSAL, Network, assert_exports_exactly, networks
from upscale import Selection
from upscale.capture import Example
from upscale.report import picture
from upscale.verify import TOLERANCE, compare
from upscale.zoo import torchvision_model


def infilled_sums(plan: upscale.Plan) -> dict[str, bool]:
    """The additions that a plan has rewritten, and whether zeros are filled in for each."""
    turns = plan.graph.turns
    return {node: f"{node}~whole" not in turns[node] for node in plan.graph.sums}


@pytest.mark.parametrize("after", ["norm", "layer"])
@pytest.mark.parametrize("name", TRACED)
def test_an_export_equals_the_model_masked_on_its_output_side(name: str, after: str) -> None:
    make, example = NETS[name]
    shares = (0.25, 0.75) if after == "norm" else (0.75, 0.25)
    for seed, (share, order) in enumerate(zip(shares, ("optimal", "none"), strict=True)):
        torch.manual_seed(seed)
        model = calm(make()).double()
        selection = random_selection(model, share, seed, side="output", after=after)
        exported_exactly(model, selection, example, order)


@pytest.mark.parametrize("name", TRACED)
def test_an_export_equals_the_model_masked_on_both_sides(name: str) -> None:
    make, example = NETS[name]
    for seed, after in enumerate(("norm", "layer")):
        torch.manual_seed(seed)
        model = calm(make()).double()
        outputs = random_selection(model, 0.5, seed, side="output", after=after)
        exported_exactly(model, [random_selection(model, 0.25, seed + 9), outputs], example)


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(networks(sides=("output", "both")))
def test_an_export_of_any_network_equals_it_masked_on_its_output_side(network: Network) -> None:
    try:
        assert_exports_exactly(network)
    except upscale.CaptureError as error:
        if EXPECTED_REFUSAL not in str(error):
            raise


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(networks(sides=("output", "both")))
def test_plans_that_cost_more_than_others_are_exact_too(network: Network) -> None:
    try:
        with whatever_it_costs():
            assert_exports_exactly(network)
    except upscale.CaptureError as error:
        if EXPECTED_REFUSAL not in str(error):
            raise


@pytest.mark.parametrize("order", ["optimal", "none"])
@pytest.mark.parametrize("name", TRACED)
def test_the_baseline_that_fills_in_zeros_equals_the_masked_model_too(
    name: str, order: str
) -> None:
    make, example = NETS[name]
    torch.manual_seed(0)
    model = calm(make()).double()
    outputs = random_selection(model, 0.5, 4, side="output")
    _, plan = exported_exactly(model, outputs, example, order, "infill")
    assert all(infilled_sums(plan).values())
    inputs = random_selection(model, 0.25, 5)
    exported_exactly(model, [inputs, outputs], example, order, "infill")


def test_zeros_are_filled_in_for_what_each_operand_lacks() -> None:
    model = calm(Gate(lambda x, y: x + y)).double()
    selection = Selection(kept={"a": (0, 2, 4, 6), "b": (1, 2, 5, 6)}, side="output")
    exported, plan = exported_exactly(model, selection, order="none", sums="infill")
    one, other = (edge for edge in plan.graph.edges if edge.node == "add")
    # The sum lies as the first operand does, with what that lacks behind.
    assert (one.kind, other.kind) == ("concat", "infill")
    # Six channels of either; two are zero in both, and gone.
    assert sum(piece.length for piece in one.pieces) == other.pieces[0].length == 6
    assert exported.get_submodule("a").out_channels == 4
    with pytest.raises(upscale.PlanError, match="sums is 'none'"):
        upscale.plan(model, image(1, 8).double(), selection, sums="none")


@pytest.mark.parametrize("name", TRACED)
def test_sums_of_whole_operands_equal_the_masked_model_too(name: str) -> None:
    make, example = NETS[name]
    torch.manual_seed(0)
    model = calm(make()).double()
    outputs = random_selection(model, 0.5, 6, side="output")
    _, plan = exported_exactly(model, outputs, example, sums="whole")
    assert not infilled_sums(plan)


def test_a_whole_sum_copies_nothing_and_lacks_what_no_operand_has() -> None:
    model = calm(Gate(lambda x, y: x + y)).double()
    selection = Selection(kept={"a": (0, 2, 4, 6), "b": (1, 2, 5, 6)}, side="output")
    exported, plan = exported_exactly(model, selection, sums="whole")
    assert plan.copies == 0
    assert {exported.get_submodule(name).out_channels for name in "ab"} == {6}


@pytest.mark.parametrize(
    ("kept", "infilled"),
    [({"a": (1, 2, 4, 6)}, True), ({"b": (1, 2)}, True), ({"a": (1, 2), "b": (2, 3)}, False)],
)
def test_a_sum_is_filled_up_only_if_one_operand_has_all_that_the_other_has(
    kept: dict[str, tuple[int, ...]], infilled: bool
) -> None:
    model = calm(Gate(lambda x, y: x + y)).double()
    _, plan = exported_exactly(model, Selection(kept=kept, side="output"))
    assert infilled_sums(plan)["add"] == infilled
    # A split sum reads slices, and is put together once; a filled one is copied once.
    written = [edge for edge in (*plan.graph.edges, *plan.graph.joins) if edge.kind != "slice"]
    assert [edge.node for edge in written] == ["add" if infilled else "reader"]


class Chain(nn.Module):
    """Two additions of vectors, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.reader = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x) * 0.5 + 1
        x = x + self.b(torch.relu(x))
        return self.reader(x + self.c(torch.relu(x)))  # type: ignore[no-any-return]


def test_a_filled_up_sum_whose_constants_are_equal_computes_them_once() -> None:
    model = calm(Chain()).double()
    selection = Selection(kept={"a": (), "b": (0, 1), "c": (3, 4)}, side="output")

    def vectors(batch: int, size: int) -> Tensor:
        return torch.randn(batch, 4, dtype=torch.float64)

    _, plan = exported_exactly(model, selection, vectors)
    assert any(name.endswith("~once") for name in plan.graph.renamed.values())


class Stream(nn.Module):
    """Layers that add to a stream what they make of it."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.stem = conv(3, channels)
        self.layers = nn.ModuleList(conv(channels, channels) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x)
        return x.relu().mean((2, 3))


def test_a_stream_is_put_together_once_for_each_sum() -> None:
    torch.manual_seed(0)
    model = calm(Stream(64, 3)).double()
    selection = random_selection(model, 0.25, 0, side="output")
    with whatever_it_costs():
        _, plan = exported_exactly(model, selection)
    (second,) = (edge for edge in plan.graph.edges if edge.value == "add~add_1")
    assert [edge.value for edge in plan.graph.joins] == ["add", "add_1"]
    assert {piece.value for piece in second.pieces} == {"add"}


def test_what_is_made_to_be_added_lies_as_what_it_is_added_to() -> None:
    torch.manual_seed(0)
    model = calm(Stream(64, 8)).double()
    for share in (0.25, 0.75):
        selection = random_selection(model, share, 0, side="output")
        _, plan = exported_exactly(model, selection)
        made = [edge for edge in plan.graph.edges if edge.value.startswith("layers_")]
        assert made
        assert {edge.kind for edge in made} <= {"slice", "infill", "concat"}


class Gate(nn.Module):
    """`through` stands between a layer whose outputs are pruned and one that reads them."""

    def __init__(self, through: Callable[[Tensor], Any], reader: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.n = conv(3, 8), nn.BatchNorm2d(8)
        self.b = conv(3, 8)
        self.through = through
        self.reader = conv(8, 4) if reader is None else reader

    def forward(self, x: Tensor) -> Any:
        return self.reader(self.through(self.n(self.a(x)), self.b(x)))


class Normed(nn.Module):
    """A BatchNorm after a sum."""

    def __init__(self, then: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.n = nn.BatchNorm2d(8)
        self.then = then

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.then(self.n(x + y))


class Depthwise(nn.Module):
    """A depthwise convolution, whose bias takes the place of zeros."""

    def __init__(self, padding: int, before: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.d, self.before = nn.Conv2d(8, 8, 3, padding=padding, groups=8), before

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.d(self.before(x)).sigmoid()


class Bare(nn.Module):
    """A convolution with a parameter for its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 3, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.conv2d(x.exp(), self.weight, padding=1)


KEPT = (1, 2, 4, 6)  # of eight; the other four are pruned
BOTH = {"a": KEPT, "b": KEPT}
ONE = {"a": KEPT}
# What stands between, the reader, what is kept, and how many channels `a` still computes.
TRAPS: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]], int]] = {
    "relu": (lambda: Gate(lambda x, y: x.relu()), ONE, 4),
    "a sigmoid before padding": (lambda: Gate(lambda x, y: x.sigmoid()), ONE, 5),
    "a sigmoid and no padding": (
        lambda: Gate(lambda x, y: x.sigmoid(), nn.Conv2d(8, 4, 3, stride=2)),
        ONE,
        4,
    ),
    "a sigmoid before a layer without bias": (
        lambda: Gate(lambda x, y: x.sigmoid(), nn.Conv2d(8, 4, 1, bias=False)),
        ONE,
        4,
    ),
    "a scalar added": (lambda: Gate(lambda x, y: x + 1.5), ONE, 5),
    "a scalar added, then cut off": (lambda: Gate(lambda x, y: (x - 1.5).relu()), ONE, 4),
    "a norm after a sum": (lambda: Gate(Normed()), BOTH, 5),
    "a norm after a sum and no padding": (lambda: Gate(Normed(), conv(8, 4, 1)), BOTH, 4),
    "a norm after a sum of which one is whole": (lambda: Gate(Normed()), ONE, 4),
    "a bias before padding": (lambda: Gate(Depthwise(1)), ONE, 5),
    "a number before a depthwise layer": (lambda: Gate(Depthwise(0, torch.exp)), ONE, 5),
    "a number before a padded depthwise layer": (lambda: Gate(Depthwise(1, torch.exp)), ONE, 8),
    "a number padded with zeros": (
        lambda: Gate(lambda x, y: F.pad(x + 1, (1, 1, 1, 1))),
        ONE,
        8,
    ),
    "average pooling that counts its padding": (
        lambda: Gate(lambda x, y: F.avg_pool2d(x + 1, 3, 2, padding=1)),
        ONE,
        8,
    ),
    "average pooling of zeros that counts its padding": (
        lambda: Gate(lambda x, y: F.avg_pool2d(x, 3, 2, padding=1)),
        ONE,
        4,
    ),
    "average pooling without padding": (
        lambda: Gate(lambda x, y: F.avg_pool2d(x + 1, 3, 2), conv(8, 4, 1)),
        ONE,
        4,
    ),
    "maximum pooling with padding": (
        lambda: Gate(lambda x, y: F.max_pool2d(x - 1, 3, 2, padding=1), conv(8, 4, 1)),
        ONE,
        4,
    ),
    "a transposed convolution": (
        lambda: Gate(lambda x, y: x.exp(), nn.ConvTranspose2d(8, 4, 3, stride=2)),
        ONE,
        5,
    ),
    "a transposed convolution of zeros": (
        lambda: Gate(lambda x, y: x, nn.ConvTranspose2d(8, 4, 3, stride=2)),
        ONE,
        4,
    ),
    "a copy in another memory format": (
        lambda: Gate(lambda x, y: x.contiguous(memory_format=torch.channels_last).cos()),
        ONE,
        5,
    ),
    "statistics that are computed": (
        lambda: Gate(
            lambda x, y: F.batch_norm(
                x, torch.zeros(8).to(x), torch.ones(8).to(x), y.mean((0, 2, 3))
            )
        ),
        ONE,
        8,
    ),
    "a gate that is multiplied": (lambda: Gate(lambda x, y: x * y.sigmoid()), ONE, 4),
    "a gate that is pruned": (lambda: Gate(lambda x, y: x.sigmoid() * y), ONE, 8),
    "a gate of one channel": (lambda: Gate(lambda x, y: x + y.mean(1, keepdim=True)), ONE, 8),
    "a flattened tensor": (
        lambda: Gate(lambda x, y: F.adaptive_avg_pool2d(x.tanh(), 2).flatten(1), nn.Linear(32, 4)),
        ONE,
        4,
    ),
    "flattened numbers": (
        lambda: Gate(lambda x, y: F.adaptive_avg_pool2d(x.cos(), 2).flatten(1), nn.Linear(32, 4)),
        ONE,
        4,
    ),
    "a view of a sum": (
        lambda: Gate(
            lambda x, y: (F.adaptive_avg_pool2d(x, 2) + F.adaptive_avg_pool2d(y, 2)).view(-1, 32),
            nn.Linear(32, 4),
        ),
        {"a": KEPT, "b": (1, 2)},
        4,
    ),
    "a gate that is one number": (
        lambda: Gate(lambda x, y: y * x.mean((2, 3), keepdim=True).sigmoid()),
        ONE,
        5,
    ),
    "a gate of vectors": (
        lambda: Gate(lambda x, y: y.mean((2, 3)) * (x.amax((2, 3)) + 1).exp(), nn.Linear(8, 4)),
        ONE,
        5,
    ),
    "a gate that is a map": (lambda: Gate(lambda x, y: y * x.sigmoid()), ONE, 8),
    "a weight that is no layer's": (lambda: Gate(Bare()), ONE, 8),
    "a concatenation": (lambda: Gate(lambda x, y: torch.cat((x, y), 1), conv(16, 4)), BOTH, 4),
    "a softmax over channels": (lambda: Gate(lambda x, y: x.softmax(1)), ONE, 8),
    "a rounded number": (lambda: Gate(lambda x, y: (x + 0.5).round()), ONE, 8),
    "a sum of which one lacks channels": (lambda: Gate(lambda x, y: (x + y).relu()), ONE, 4),
    "a sum of which each lacks others": (
        lambda: Gate(lambda x, y: (x + y).relu()),
        {"a": KEPT, "b": (0, 1, 2, 3)},
        4,
    ),
    "a sum that shares nothing": (
        lambda: Gate(lambda x, y: x + y),
        {"a": KEPT, "b": (0, 3, 5, 7)},
        4,
    ),
    "sums that a softmax needs whole": (
        lambda: Gate(lambda x, y: (x + y + y.roll(3, 1)).softmax(1)),
        {"a": (1, 2, 4), "b": (1, 2)},
        3,
    ),
    "a difference": (lambda: Gate(lambda x, y: x - y), ONE, 8),
    "a sum with a factor": (lambda: Gate(lambda x, y: torch.add(x, y, alpha=2)), ONE, 8),
    "a sum in place": (lambda: Gate(lambda x, y: x.add_(y)), ONE, 4),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_zero_becomes_what_it_becomes_and_leaves_where_it_may(trap: str) -> None:
    make, kept, computed = TRAPS[trap]
    torch.manual_seed(0)
    model = calm(make()).double()
    exported, plan = exported_exactly(model, Selection(kept=kept, side="output"))
    assert exported.get_submodule("a").out_channels == computed, str(plan)
    stay = {"a.weight", "n.weight"} & plan.zeros.keys()
    assert bool(stay) == (computed > len(kept["a"])), "channels that stay are reported"


def test_a_layer_that_shares_its_weight_with_one_that_is_not_pruned_is_masked_at_run_time() -> None:
    model = calm(Gate(lambda x, y: x + y)).double()
    model.b.weight = model.a.weight
    for after in ("norm", "layer"):
        selection = Selection(kept=ONE, side="output", after=after)
        _, plan = exported_exactly(model, selection)
        assert bool(plan.held) == (after == "layer")


def test_a_mask_on_a_layer_that_never_runs_asks_for_nothing() -> None:
    model = calm(Plain()).double()
    model.spare = conv(3, 4)
    _, plan = exported_exactly(model, Selection(kept={"spare": [0]}, side="output"))
    assert not plan.held
    assert plan.report.unreached == ("spare.weight",)


def test_a_masked_model_that_was_trained_is_exported_with_its_masks() -> None:
    model = calm(Residual()).double()
    selection = random_selection(model, 0.5, seed=3, empty=False, side="output")
    masked = upscale.mask(model, selection)
    with torch.no_grad():
        for parameter in masked.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    for asked in (None, selection):
        plan = upscale.plan(masked, image(1, 8).double(), asked)
        exported = upscale.export(masked, plan)
        assert compare(exported, masked, Example.of(image(2, 8))).exact
        assert sum(p.numel() for p in exported.parameters()) < 0.8 * sum(
            p.numel() for p in model.parameters()
        )
        assert not any(m._forward_hooks for m in exported.modules())


def test_a_plan_that_reads_one_gate_for_several_can_be_drawn() -> None:
    make, example = NETS["SqueezeExcite"]
    model = calm(make())
    outputs = random_selection(model, 0.5, 4, empty=False, side="output")
    plan = upscale.plan(model, example(1, 12), outputs)
    assert any(name.endswith("~once") for name in plan.graph.renamed.values())
    assert "No tensor has readers that keep different channels" in picture(plan)


def test_a_plan_that_splits_sums_can_be_drawn() -> None:
    model = calm(Residual())
    plan = upscale.plan(
        model, image(1, 8), random_selection(model, 0.3, 3, empty=False, side="output")
    )
    assert infilled_sums(plan)
    assert "blocks.1.0" in picture(plan)


def test_a_plan_may_be_exported_with_other_weights_than_it_was_made_with() -> None:
    model = calm(Gate(Normed(torch.sigmoid))).double()
    selection = Selection(kept=BOTH, side="output")
    plan = upscale.plan(model, image(1, 8).double(), selection)
    assert plan.weights.folds
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    exported = upscale.export(model, plan)
    assert compare(exported, upscale.mask(model, selection), Example.of(image(2, 8))).exact


def test_weights_that_break_what_a_plan_counts_on_are_refused() -> None:
    model = calm(Gate(Normed())).double()
    with torch.no_grad():
        model.through.n.bias.fill_(-9.0)
    plan = upscale.plan(model, image(1, 8).double(), Selection(kept=BOTH, side="output"))
    with torch.no_grad():
        model.through.n.bias.fill_(9.0)
    with pytest.raises(upscale.PlanError, match=r"made for other weights: reader\.weight"):
        upscale.export(model, plan)


def test_a_plan_that_knows_nothing_of_a_models_output_masks_is_refused() -> None:
    model = calm(Plain())
    plan = upscale.plan(model, image(1, 8), Selection(kept={"a": [0, 1, 2]}, side="output"))
    masked = upscale.mask(model, Selection(kept={"a": [0, 1]}, side="output"))
    with pytest.raises(upscale.PlanError, match="n has no such output mask"):
        upscale.export(masked, plan)


@pytest.mark.parametrize("after", ["norm", "layer"])
def test_pruning_outputs_in_steps_is_verified(after: str) -> None:
    model = calm(Residual())
    tuned = []
    pruned = upscale.prune(
        model,
        image(1, 8),
        amount=0.5,
        side="output",
        after=after,
        steps=2,
        tune=lambda masked, step: tuned.append(step),
    )
    assert tuned == [1, 2]
    assert sum(p.numel() for p in pruned.parameters()) < 0.8 * sum(
        p.numel() for p in model.parameters()
    )


@pytest.mark.parametrize(
    ("share", "after"),
    [
        (0.25, "norm"),
        (0.6, "layer"),
        pytest.param(0.25, "layer", marks=pytest.mark.heavy),
        pytest.param(0.75, "norm", marks=pytest.mark.heavy),
    ],
)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "densenet121", "efficientnet_b0"])
def test_an_export_of_a_known_model_equals_it_masked(name: str, share: float, after: str) -> None:
    torch.manual_seed(0)
    model = calm(torchvision_model(name))
    selection = random_selection(model, share, 1, empty=False, side="output", after=after)
    enliven(model, [selection], images((4, 3, 64, 64)))
    model.double()
    plan = upscale.plan(model, images((1, 3, 64, 64)).double(), selection)
    exported = upscale.export(model, plan)
    masked, x = upscale.mask(model, selection), images((2, 3, 80, 96))
    assert relative_error(exported, masked, x) <= TOLERANCE
    with torch.inference_mode():
        one, other = masked(x.double())
    assert (one - other).abs().max() > 0.01 * one.abs().max(), "constants are always equal"
    if name == "resnet18" and after == "norm":
        assert not plan.zeros.keys() - {"fc.weight"}
        for layer, kept in selection.kept.items():
            rows = exported.get_submodule(layer).weight.shape[0]
            assert rows <= len(tuple(kept)) or layer == "fc", layer
