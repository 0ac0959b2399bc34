"""Constants that a gate multiplies: they leave, and the gate is read in their place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from tests.deploy.running import assert_close, needs_onnx, old_format, run_onnx
from tests.store.files import outputs
from trials.exactly import exported_exactly
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import image
from upscale import Selection
from upscale.capture import Example
from upscale.pruning.fuse import fuse
from upscale.report import picture
from upscale.verify import compare

WIDTH = 12
KEPT = (0, 2, 5, 7, 8)  # of twelve
GONE = tuple(c for c in range(WIDTH) if c not in KEPT)
MASKS = Selection(kept={"expand": KEPT}, side="output")


def multiply(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate


def spread_first(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate.expand(-1, -1, x.size(2), x.size(3))


class Block(nn.Module):
    """An expansion, a depthwise layer, a gate and a projection, as in mobile networks."""

    def __init__(
        self,
        project: nn.Module | None = None,
        norm: nn.Module | None = None,
        *,
        product: Callable[[Tensor, Tensor], Tensor] = multiply,
        squeeze: bool = True,
    ) -> None:
        super().__init__()
        self.expand, self.n1 = nn.Conv2d(3, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH)
        self.deep = nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH, bias=False)
        self.n2 = nn.BatchNorm2d(WIDTH)
        self.down, self.up = nn.Conv2d(WIDTH if squeeze else 3, 4, 1), nn.Conv2d(4, WIDTH, 1)
        self.project = nn.Conv2d(WIDTH, 5, 1, bias=False) if project is None else project
        self.n3 = nn.BatchNorm2d(5) if norm is None else norm
        self.product, self.squeeze = product, squeeze
        self.head = nn.Conv2d(5, 4, 1)

    def gated(self, given: Tensor) -> Tensor:
        x = F.silu(self.n1(self.expand(given)))
        x = F.silu(self.n2(self.deep(x)))
        pooled = (x if self.squeeze else given).mean((2, 3), keepdim=True)
        return self.product(x, self.up(F.relu(self.down(pooled))).sigmoid())

    def forward(self, given: Tensor) -> Tensor:
        return self.head(self.n3(self.project(self.gated(given))))


class Twice(Block):
    """What the gate multiplies has a second reader."""

    def __init__(self, reader: nn.Module) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
        x = self.gated(given)
        return self.head(self.n3(self.project(x))), self.reader(x)


class Tokens(Block):
    """A linear layer reads what the gate multiplies, place by place."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, 5), nn.Identity(), product=self.tokens)

    @staticmethod
    def tokens(x: Tensor, gate: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2) * gate.flatten(2).transpose(1, 2)

    def forward(self, given: Tensor) -> Tensor:
        return self.project(self.gated(given))


def made(block: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return calm(block).double()


# How a block is gated, and how many channels the expansion still computes.
BLOCKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "a norm behind the layer": (Block, 5),
    "no norm behind the layer": (lambda: Block(norm=nn.Identity()), 5),
    "a norm without parameters": (lambda: Block(norm=nn.BatchNorm2d(5, affine=False)), 5),
    "a layer with a bias": (lambda: Block(nn.Conv2d(WIDTH, 5, 1)), 5),
    "a large layer": (lambda: Block(nn.Conv2d(WIDTH, 5, 3)), 5),
    "a large layer that strides": (lambda: Block(nn.Conv2d(WIDTH, 5, 3, stride=2)), 5),
    "a small layer that strides": (lambda: Block(nn.Conv2d(WIDTH, 5, 1, stride=2)), 5),
    "a layer that pads": (lambda: Block(nn.Conv2d(WIDTH, 5, 3, padding=1)), WIDTH),
    "a layer that pads with what is there": (
        lambda: Block(nn.Conv2d(WIDTH, 5, 3, padding=1, padding_mode="reflect")),
        WIDTH,
    ),
    "a transposed layer": (lambda: Block(nn.ConvTranspose2d(WIDTH, 5, 2)), WIDTH),
    "a gate that does not look at what it gates": (lambda: Block(squeeze=False), 5),
    "a gate in place": (lambda: Block(product=lambda x, gate: x.mul_(gate)), 5),
    "a gate that comes first": (lambda: Block(product=lambda x, gate: gate * x), 5),
    "a gate that is spread": (lambda: Block(product=spread_first), 5),
    "a gate that is added": (lambda: Block(product=lambda x, gate: x + gate), WIDTH),
    "a gate that divides": (lambda: Block(product=lambda x, gate: x / gate), WIDTH),
    "a gate that is a map": (lambda: Block(product=lambda x, gate: x * x.exp().cumsum(3)), WIDTH),
    "an activation behind the gate": (
        lambda: Block(product=lambda x, gate: (x * gate).relu()),
        WIDTH,
    ),
    "dropout behind the gate": (
        lambda: Block(product=lambda x, gate: F.dropout(x * gate, training=False)),
        5,
    ),
    "a gate that is written to later": (
        lambda: Block(product=lambda x, gate: (x * gate) + gate.mul_(2).mean(1, keepdim=True)),
        WIDTH,
    ),
    "a reader more that can do without": (lambda: Twice(nn.Conv2d(WIDTH, 3, 2)), 5),
    "a reader more that pads": (lambda: Twice(nn.Conv2d(WIDTH, 3, 3, padding=1)), WIDTH),
    "a caller who reads": (lambda: Twice(nn.Identity()), WIDTH),
    "a linear layer": (Tokens, 5),
}


@pytest.mark.parametrize("order", ["optimal", "none"])
@pytest.mark.parametrize("name", BLOCKS)
def test_a_constant_leaves_where_its_gate_can_be_read_for_it(name: str, order: str) -> None:
    make, computed = BLOCKS[name]
    exported, plan = exported_exactly(made(make()), MASKS, order=order)
    assert exported.get_submodule("expand").out_channels == computed, str(plan)
    assert bool(plan.weights.gates) == (computed < WIDTH)
    assert bool(plan.zeros) == (computed == WIDTH), "channels that stay are reported"


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(BLOCKS)),
    st.integers(0, 10**6),
    st.sampled_from(["norm", "layer"]),
    st.sampled_from([0.25, 0.75]),
    st.booleans(),
)
def test_an_export_of_a_gated_block_equals_it_masked(
    name: str, seed: int, after: str, share: float, both: bool
) -> None:
    model = made(BLOCKS[name][0]())
    outputs = random_selection(model, share, seed, side="output", after=after)
    inputs = [random_selection(model, 0.25, seed + 1)] if both else []
    exported_exactly(model, [*inputs, outputs])


def test_a_gate_whose_own_rows_are_masked_is_a_constant_and_folds() -> None:
    kept = {"expand": KEPT, "up": [c for c in range(WIDTH) if c != GONE[0]]}
    exported, plan = exported_exactly(made(Block()), Selection(kept=kept, side="output"))
    assert plan.weights.folds["project.weight"].columns == GONE[:1]
    assert plan.weights.gates["project.weight"].columns == GONE[1:]
    assert exported.get_submodule("project_gated").in_channels == len(GONE) - 1


def test_a_block_that_is_constant_but_for_its_gate_computes_one_channel_for_its_shape() -> None:
    exported, _ = exported_exactly(made(Block()), Selection(kept={"expand": []}, side="output"))
    assert exported.get_submodule("expand").out_channels == 1
    assert exported.get_submodule("project").in_channels == 1
    assert exported.get_submodule("project_gated").in_channels == WIDTH - 1


def test_what_a_gate_adds_is_added_behind_the_norm_which_stays_next_to_its_layer() -> None:
    model = made(Block())
    exported, plan = exported_exactly(model, MASKS)
    assert plan.weights.gates["project.weight"].node == "n3"
    fused = fuse(copy.deepcopy(exported))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    assert compare(fused, upscale.mask(model, MASKS), Example.of(image(2, 16))).exact


def test_constants_that_are_multiplied_without_extent_on_the_example_stay() -> None:
    """On another image they may have an extent, and so may what would be read for them."""
    model = made(Block())
    plan = upscale.plan(model, image(1, 1).double(), MASKS)
    assert not plan.weights.gates
    masked = upscale.mask(model, MASKS)
    assert compare(upscale.export(model, plan), masked, Example.of(image(2, 9))).exact


def test_a_plan_with_gates_goes_through_json_and_may_meet_other_weights() -> None:
    model = made(Block())
    plan = upscale.plan(model, image(1, 12).double(), MASKS)
    read = upscale.Plan.from_json(plan.to_json())
    assert read == plan
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 10)
    for size in (1, 12):  # the example may be any
        exported = upscale.export(model, read, image(1, size).double())
        masked = upscale.mask(model, MASKS)
        assert compare(exported, masked, Example.of(image(2, 16))).exact


def test_weights_that_break_what_a_gated_plan_counts_on_are_refused() -> None:
    model = Block(squeeze=False)
    shift = nn.BatchNorm2d(WIDTH)
    model.n1 = nn.Sequential(model.n1, shift, nn.ReLU())
    made(model)
    with torch.no_grad():
        shift.bias.fill_(-9.0)  # cut off: what is padded is zero
    plan = upscale.plan(model, image(1, 12).double(), MASKS)
    assert plan.weights.gates
    assert not plan.weights.folds
    with torch.no_grad():
        shift.bias.fill_(9.0)
    with pytest.raises(upscale.PlanError, match=r"made for other weights: project\.weight"):
        upscale.export(model, plan)


def test_an_export_with_gates_is_saved_and_loaded(tmp_path: Path) -> None:
    model = made(Block())
    exported, _ = exported_exactly(model, MASKS)
    upscale.save(exported, tmp_path / "gated.safetensors")
    x = image(2, 16).double()
    for loaded in (
        upscale.load(tmp_path / "gated.safetensors"),
        upscale.load(tmp_path / "gated.safetensors", model),
    ):
        assert torch.equal(loaded(x), exported(x))


def test_an_export_with_gates_trains_and_can_be_drawn_but_not_undone() -> None:
    model = made(Block())
    exported, plan = exported_exactly(model, MASKS)
    exported.train()(image(4, 8).double()).square().sum().backward()
    assert exported.get_submodule("project_gated").weight.grad.abs().sum() > 0
    assert "project" in picture(plan)
    with pytest.raises(upscale.PlanError, match="reads a gate beside project"):
        upscale.undo(exported, model)


def pruned_for_deployment() -> tuple[torch.fx.GraphModule, Tensor, Tensor]:
    model = made(Block()).float()
    plan = upscale.plan(model, image(1, 16), MASKS)
    assert plan.weights.gates
    return upscale.export(model, plan), image(1, 16), image(3, 16)


def test_an_export_with_gates_goes_into_pt2(tmp_path: Path) -> None:
    pruned, one, several = pruned_for_deployment()
    upscale.deploy.to_exported(pruned, one, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert_close(outputs(loaded, several), outputs(pruned, several), 1e-6)


@old_format
def test_an_export_with_gates_goes_into_torchscript(tmp_path: Path) -> None:
    pruned, one, several = pruned_for_deployment()
    upscale.deploy.to_torchscript(pruned, one, tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt")
    assert_close(outputs(loaded, several), outputs(pruned, several), 1e-6)


@needs_onnx
def test_an_export_with_gates_goes_into_onnx(tmp_path: Path) -> None:
    pruned, one, several = pruned_for_deployment()
    upscale.deploy.to_onnx(pruned, one, tmp_path / "model.onnx")
    assert_close(run_onnx(tmp_path / "model.onnx", several), outputs(pruned, several), 1e-5)


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    model = made(Block())
    model.project_gated = nn.Conv2d(4, 4, 1).double()
    head = model.head
    model.head = nn.Sequential(head, model.project_gated)
    exported, _ = exported_exactly(model, MASKS)
    assert exported.get_submodule("project_gated_").in_channels == len(GONE)
