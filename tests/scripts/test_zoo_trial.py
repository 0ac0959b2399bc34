"""The zoo's trial can fail: it tells wrong exports from exact ones, and says where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import upscale
from scripts.zoo.prunable import weights_of
from scripts.zoo.trial import (
    LEAST_MOVE,
    LEAST_SEEN,
    LEAST_VARIATION,
    Case,
    judge,
    least_seen,
    random_selections,
    swap_rows,
)
from trials.comparing import relative_error
from trials.lively import (
    DAMPING,
    MOST_RESPONSE,
    Liveliness,
    enliven,
    images,
    liveliness,
    tell_channels_apart,
)
from upscale.capture import Example
from upscale.model.layers import layers, weight_of
from upscale.verify import TOLERANCE
from upscale.zoo import DigitsNet

CASE = Case(0.5)
SHAPE = (4, 1, 8, 12)
LIVELY = Liveliness(to_rounding=1e-14, to_nudge=1e-2, variation=0.5)


class Deep(nn.Module):
    """Gated residual blocks, one after another."""

    def __init__(self, depth: int = 40, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.SiLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
            )
            for _ in range(depth)
        )
        self.gates = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block, gate in zip(self.blocks, self.gates, strict=True):
            y = block(x)
            x = x + y * gate(y.mean((2, 3), keepdim=True)).sigmoid()
        logits: torch.Tensor = self.head(x.mean((2, 3)))
        return logits


def lively_digits(
    sides: tuple[str, ...] = ("input",),
) -> tuple[nn.Module, tuple[upscale.Selection, ...], torch.Tensor]:
    torch.manual_seed(0)
    model = DigitsNet().eval()
    tell_channels_apart(model)
    selections = random_selections(model, replace(CASE, sides=sides), 0)
    inputs = torch.randn(SHAPE) * torch.rand(4, 1, 1, 1) + torch.randn(4, 1, 1, 1)
    enliven(model, selections, inputs)
    return model, selections, inputs


def seen_if_swapped(
    layer: nn.Module, exported: nn.Module, masked: nn.Module, example: Example
) -> Iterator[bool]:
    """Whether each swap of a layer's first row is seen; it may meet another that is zero too."""
    for other in range(1, len(weight_of(layer))):
        swap_rows(layer, 0, other)
        seen = relative_error(exported, masked, example) >= LEAST_SEEN
        swap_rows(layer, 0, other)
        yield seen


@pytest.mark.parametrize("sides", [("input",), ("output",), ("input", "output")])
def test_two_channels_swapped_in_any_layer_of_an_export_are_seen(sides: tuple[str, ...]) -> None:
    model, selections, inputs = lively_digits(sides)
    model.double()
    plan = upscale.plan(model, inputs[:1].double(), selections)
    exported = upscale.export(model, plan)
    masked = upscale.mask(model, selections)
    example = Example.of(inputs)
    assert relative_error(exported, masked, example) <= TOLERANCE
    for name, layer in layers(exported).items():
        if len(weight_of(layer)) > 1:
            assert any(seen_if_swapped(layer, exported, masked, example)), name
    assert relative_error(exported, masked, example) <= TOLERANCE


def test_a_lively_models_output_moves_with_its_input_and_not_with_rounding() -> None:
    model, selection, inputs = lively_digits()
    lively = liveliness(upscale.mask(model, selection).double(), inputs)
    assert lively.to_nudge >= LEAST_MOVE
    assert lively.variation >= LEAST_VARIATION
    assert lively.calm


def test_damping_calms_a_deep_model_and_leaves_it_lively() -> None:
    measured = []
    for damping in (DAMPING[0], DAMPING[-1]):
        torch.manual_seed(0)
        model = Deep().eval()
        tell_channels_apart(model)
        selections = random_selections(model, CASE, 0)
        inputs = images((4, 3, 12, 12))
        enliven(model, selections, inputs, damping)
        measured.append(liveliness(upscale.mask(model, selections).double(), inputs))
    wild, calm = measured
    assert calm.to_nudge < wild.to_nudge / 2
    assert calm.to_rounding <= MOST_RESPONSE
    assert calm.to_nudge >= LEAST_MOVE
    assert calm.variation >= LEAST_VARIATION


def test_what_the_mask_hides_is_far_from_zero() -> None:
    model, (selection,), _ = lively_digits()
    for name, layer in weights_of(model).items():
        kept = selection.kept[name.removesuffix(".weight")]
        norms = weight_of(layer).detach().transpose(0, 1).flatten(1).norm(dim=1)
        gone = sorted(set(range(len(norms))).difference(kept))
        assert not gone or norms[gone].min() > norms.max() / 100, name


def test_a_layer_that_nothing_depends_on_is_not_seen() -> None:
    model, _, inputs = lively_digits()
    assert least_seen(model.double(), inputs, 0) >= LEAST_SEEN
    head = layers(model)["head"]
    with torch.no_grad():
        weight_of(head).zero_()
    assert least_seen(model, inputs, 0) == 0


@pytest.mark.parametrize(
    ("status", "error", "lively", "seen", "seconds"),
    [
        ("exact", 1e-14, LIVELY, 1e-3, 1.0),
        ("wrong", 1e-9, LIVELY, 1e-3, 1.0),
        ("wrong", float("nan"), LIVELY, 1e-3, 1.0),
        ("constant", 1e-14, replace(LIVELY, variation=1e-3), 1e-3, 1.0),
        ("constant", 1e-14, replace(LIVELY, to_nudge=1e-7), 1e-3, 1.0),
        ("blind", 1e-14, LIVELY, 1e-9, 1.0),
        ("slow", 1e-14, LIVELY, 1e-3, 61.0),
    ],
)
def test_a_row_fails_for_what_is_wrong_with_it(
    status: str, error: float, lively: Liveliness, seen: float, seconds: float
) -> None:
    assert judge(CASE, error, lively, seen, seconds) == status
