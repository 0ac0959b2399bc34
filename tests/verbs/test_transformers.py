"""Window attention in torchvision's models: exact exports, from which value channels leave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.comparing import relative_error
from trials.lively import calm
from trials.masks import random_selection
from upscale.verify import TOLERANCE
from upscale.zoo import torchvision_model

# The second size decides as the first does: no stage comes to have more windows than one.
SIZES = {"swin_t": (64, 96), "swin_v2_t": (96, 80)}

every_model = pytest.mark.parametrize("name", SIZES)


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    return calm(torchvision_model(name))


def images(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, size, size) * (torch.rand(batch, 3, 1, 1) + 0.5)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("swin_t", 0.25),
        ("swin_v2_t", 0.75),
        pytest.param("swin_t", 0.75, marks=pytest.mark.heavy),
        pytest.param("swin_v2_t", 0.25, marks=pytest.mark.heavy),
    ],
)
def test_an_export_equals_the_masked_model(name: str, share: float) -> None:
    model, (size, another) = make(name), SIZES[name]
    selection = random_selection(model, share, seed=0, empty=False)
    exported = upscale.export(model, upscale.plan(model, images(1, size), selection))
    masked = upscale.mask(model, selection)
    with torch.inference_mode():
        one, other = masked(images(2, size))
    assert (one - other).abs().max() > 0.01 * one.abs().max(), "constants are always equal"
    for given in (images(1, size), images(3, size), images(2, another)):
        assert relative_error(exported, masked, given) <= TOLERANCE


@every_model
def test_value_channels_leave_every_attention(name: str) -> None:
    model = make(name)
    projections = {
        path: layer for path, layer in model.named_modules() if path.endswith("attn.proj")
    }
    kept = {path: list(range(0, layer.in_features, 2)) for path, layer in projections.items()}
    plan = upscale.plan(model, images(1, 64), upscale.Selection(kept=kept))
    held = dict(upscale.export(model, plan).named_parameters())
    for path, layer in projections.items():
        width = layer.in_features
        assert held[path.replace("proj", "qkv.weight")].shape == (2 * width + width // 2, width)


@every_model
def test_a_size_that_decides_otherwise_is_refused(name: str) -> None:
    model = make(name)
    plan = upscale.plan(model, images(1, 64), upscale.Selection(kept={}))
    exported = upscale.export(model, plan)
    with pytest.raises(AssertionError, match=r"shifted_window_attention.*export it again"):
        exported(images(1, 224))
