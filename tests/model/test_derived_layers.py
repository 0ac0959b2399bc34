"""Layers of classes that derive from torch's: those that compute as it does, and those that do not.

The oracle is the masked model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import upscale
from upscale.model.layers import stock_class
from upscale.verify import TOLERANCE


class Same(nn.Conv2d):
    """Constructs itself otherwise, and keeps a note; computes as torch's own."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)
        self.note = "same size"

    @staticmethod
    def shrinks() -> bool:
        return False

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.3)


class Standardised(nn.Conv2d):
    """Applies another weight than it stores, in what torch's forward calls."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1, bias=False)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean((1, 2, 3), keepdim=True), bias)


def weight_normed(inputs: int, outputs: int) -> nn.Module:
    return parametrizations.weight_norm(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False))


def plain(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


Kind = Callable[[int, int], nn.Module]
KINDS: list[Kind] = [plain, Same, Standardised, weight_normed]


class Residual(nn.Module):
    """Two layers with norms, the second one's output added to the first one's."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.first, self.second, self.last = kind(3, 8), kind(8, 8), kind(8, 6)
        self.norm, self.other = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = (x + self.other(self.second(x))).relu()
        made: Tensor = self.last(x)
        return made


def residual(kind: Kind) -> Residual:
    torch.manual_seed(0)
    model = Residual(kind).double().eval()
    for norm in (model.norm, model.other):
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            assert isinstance(tensor, Tensor)
            nn.init.normal_(tensor)
    return model


def exported(
    model: nn.Module, example: Tensor, selection: upscale.Selection
) -> torch.fx.GraphModule:
    return upscale.export(model, upscale.plan(model, example, selection))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", ["norm", "layer"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_exports_are_exact_whatever_class_the_layers_are_of(
    kind: Kind, after: Any, side: str
) -> None:
    model, example = residual(kind), torch.randn(2, 3, 9, 9, dtype=torch.float64)
    kept = {"first": [0, 2], "second": [1, 2, 5], "last": [0, 3, 4]}
    selection = upscale.Selection(kept=kept, side=side, after=after)
    found = exported(model, example, selection)(example).detach()
    # A mask made without an example means the same as a plan, which has one.
    expected = upscale.mask(model, selection)(example).detach()
    assert float((found - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())


def test_what_computes_as_torchs_own_is_pruned_as_torchs_own() -> None:
    example = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    selection = upscale.Selection(kept={"first": [0, 2], "second": [1, 2, 5]}, side="output")
    own, stock = (exported(residual(kind), example, selection) for kind in (Same, plain))
    assert [p.shape for p in own.parameters()] == [p.shape for p in stock.parameters()]
    assert sum(p.numel() for p in own.parameters()) < 0.5 * sum(
        p.numel() for p in residual(plain).parameters()
    )


def test_an_export_has_torchs_own_layers_and_can_be_saved(tmp_path: Path) -> None:
    model, example = residual(Same), torch.randn(2, 3, 9, 9, dtype=torch.float64)
    pruned = exported(model, example, upscale.Selection(kept={"second": [0, 1, 5]}))
    assert type(pruned.get_submodule("second")) is nn.Conv2d
    upscale.save(pruned, tmp_path / "pruned.safetensors")
    assert torch.equal(upscale.load(tmp_path / "pruned.safetensors")(example), pruned(example))
    assert type(model.second) is Same
    assert model.second.note == "same size"


def test_a_mask_is_of_the_weight_that_a_layer_applies() -> None:
    model = residual(Standardised)
    masked = upscale.mask(model, upscale.Selection(kept={"second": [0]}))
    read: list[Tensor] = []
    masked.second.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    made = []
    masked.second.register_forward_hook(lambda _, given, out: made.append(out))
    example = torch.randn(1, 3, 9, 9, dtype=torch.float64)
    masked(example)
    weight = model.second.weight - model.second.weight.mean((1, 2, 3), keepdim=True)
    expected = nn.functional.conv2d(read[0][:, :1], weight[:, :1], padding=1)
    torch.testing.assert_close(made[0], expected)


def test_which_classes_compute_as_torchs_own() -> None:
    class Patched(nn.Linear):
        pass

    patched = Patched(2, 2)
    assert stock_class(patched) is nn.Linear
    patched.forward = lambda x: x  # type: ignore[method-assign]
    assert stock_class(patched) is None
    assert stock_class(Same(1, 1)) is nn.Conv2d
    assert stock_class(Standardised(1, 1)) is None
    assert stock_class(residual(plain)) is None
