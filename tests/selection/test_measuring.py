"""What a choice amounts to: as masks, and in an export, without a plan."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import upscale
from tests.selection.flows import fork
from trials.lively import calm
from trials.nets import NETS
from upscale import Macs, Parameters
from upscale.lowering.lowered import Lowered
from upscale.model.layers import layers, weight_of
from upscale.planning import Plan
from upscale.planning import make_plan as really_plan
from upscale.selection.measuring import LayerSizes, measure_layers

WEIGHTS = {"a": 12, "b": 8, "c": 12}


@pytest.fixture
def plans() -> Iterator[list[Plan]]:
    """Every plan that is made while a test runs."""
    made: list[Plan] = []

    def noted(*args: object, **options: object) -> Plan:
        made.append(really_plan(*args, **options))  # type: ignore[arg-type]
        return made[-1]

    places = ("upscale.api.make_plan", "upscale.selection.streams.make_plan")
    with mock.patch(places[0], noted), mock.patch(places[1], noted):
        yield made


def test_masks_take_columns_and_an_export_the_rows_behind_them_too() -> None:
    sizes = measure_layers(fork(), WEIGHTS)
    columns = {"b": np.array([0, 1]), "c": np.array([1, 2])}
    kept = {weight: np.isin(np.arange(4), own) for weight, own in columns.items()}
    assert sizes.masked("channels", kept) == 0.5
    assert sizes.masked("parameters", kept) == (4 + 6) / 32
    # Nobody reads channel 3 any more, so a row of `a` goes, 3 numbers, beside what is masked.
    read = {f"@{weight}": own for weight, own in columns.items()}
    assert sizes.exported(Lowered(fork(), read))["parameters"] == pytest.approx((3 + 4 + 6) / 32)


def test_a_layer_that_reads_nothing_multiplies_nothing() -> None:
    nothing = np.empty(0, dtype=np.int64)
    shares = measure_layers(fork(), WEIGHTS).exported(Lowered(fork(), {"@b": nothing}))
    assert shares["parameters"] == pytest.approx(8 / 32)
    assert shares["macs"] == pytest.approx(8 / 32)


def test_a_layer_that_is_never_reached_stays_as_it_is() -> None:
    sizes = LayerSizes({**WEIGHTS, "aside": 32}, {**WEIGHTS, "aside": 0})
    nothing = np.empty(0, dtype=np.int64)
    assert sizes.exported(Lowered(fork(), {"@b": nothing}))["parameters"] == pytest.approx(8 / 64)


def stack() -> nn.Module:
    torch.manual_seed(0)
    blocks = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU()]
    for _ in range(3):
        blocks += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return calm(nn.Sequential(*blocks, nn.Conv2d(32, 8, 1)))


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("amount", [Parameters(0.3, exported=True), Macs(0.3, exported=True)])
def test_an_amount_of_the_export_is_met_without_a_plan(
    amount: upscale.Amount, side: str, scope: str, plans: list[Plan]
) -> None:
    model, x = stack(), torch.randn(1, 3, 8, 8)
    reached = upscale.select(model, x, amount=amount, side=side, scope=scope).reached
    assert not plans
    assert reached is not None
    assert reached.share == pytest.approx(0.3, abs=0.02)


NAMES = ["Residual", "Dense", "Grouped", "Shuffle", "SqueezeExcite", "Inception", "Flattened"]


@pytest.mark.filterwarnings("ignore::upscale.AmountWarning")
@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_measured_is_what_the_export_has(name: str, side: str) -> None:
    make, example = NETS[name]
    torch.manual_seed(0)
    model, x = calm(make()), example(2, 12)
    amount = Parameters(0.4, exported=True)
    selection = upscale.select(model, x, amount=amount, side=side, importance="random")
    exported = upscale.export(model, upscale.plan(model, x, selection, order="none"))
    left = sum(weight_of(layer).numel() for layer in layers(exported).values())
    total = sum(weight_of(layer).numel() for layer in layers(model).values())
    assert selection.reached is not None
    assert selection.reached.exported_parameters == pytest.approx(1 - left / total)
