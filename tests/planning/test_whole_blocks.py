"""Whole blocks: at prices of a runtime with blocks, plans read and make what suits it, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

import upscale
from trials.comparing import relative_error
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS, TRACED
from trials.networks import EXPECTED_REFUSAL, Network, assert_exports_exactly, networks
from upscale.model.layers import layers
from upscale.targets import runtime
from upscale.targets.prices import BUILT_IN, CopyPrices, Prices

# The networks of tests are small: whatever saves a copy or a channel counts a thousandfold.
COPIES = CopyPrices(gather_byte=5e3, run_byte=4e3, run_row=1e6, slice_byte=3e3, join_byte=1e2)
BLOCKED = replace(
    BUILT_IN,
    outer=COPIES,
    inner=COPIES,
    mac=10.0,
    channelwise_mac=10.0,
    block=8,
    align=4,
    odd=2.0,
    channelwise_odd=6.0,
    slice_call=1e5,
)
# Here a slice is worth what a layer saves by it.
CHEAP = CopyPrices(gather_byte=5e3, run_byte=4e3, run_row=1e6, slice_byte=0.0, join_byte=1e2)
SLICES_PAY = replace(BLOCKED, outer=CHEAP, inner=CHEAP, mac=1e4, slice_call=1.0)
ODD_IS_DEAR = replace(SLICES_PAY, align=8, odd=50.0)
PRICES = (BLOCKED, SLICES_PAY, ODD_IS_DEAR)


def at(prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans reckon with given prices."""
    monkeypatch.setattr(runtime, "prices_of", lambda target: prices)


class Gated(nn.Module):
    """An inverted bottleneck with a gate, and a residual stream around it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.expand, self.norm = nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64)
        self.deep = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.squeeze, self.excite = nn.Conv2d(64, 8, 1), nn.Conv2d(8, 64, 1)
        self.project = nn.Conv2d(64, 16, 1)
        self.head = nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.deep(torch.relu(self.norm(self.expand(x)))))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        return self.head(x + self.project(y * gate))


IMAGE = torch.randn(1, 3, 8, 8)
# Of 64 channels, the projection reads 37 and the gate 30; 49 are read by either.
KEPT = {"squeeze": range(30), "project": range(12, 49), "expand": range(5, 16), "head": range(9)}


def exported_at(prices: Prices, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """An export of the gated network, which is exact."""
    at(prices, monkeypatch)
    torch.manual_seed(0)
    model = calm(Gated())
    selection = upscale.Selection(kept=KEPT)
    exported = upscale.export(model, upscale.plan(model, IMAGE, selection))
    assert relative_error(exported, upscale.mask(model, selection), IMAGE) <= 1e-10
    return exported


def widths(model: nn.Module) -> dict[str, tuple[int, int]]:
    """How many channels each convolution reads and makes."""
    return {name: tuple(layer.weight.shape[1::-1]) for name, layer in layers(model).items()}


def test_where_slices_are_copies_all_is_read_and_made_in_whole_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = widths(exported_at(BLOCKED, monkeypatch))
    assert found["expand"] == (16, 52)
    assert found["deep"] == (1, 52)
    assert found["squeeze"][0] == found["project"][0] == 52
    assert found["head"][0] == found["stem"][1] == 16


def test_a_projection_that_gains_more_than_a_slice_costs_reads_whole_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = widths(exported_at(SLICES_PAY, monkeypatch))
    assert found["project"][0] == 40
    assert found["deep"] == (1, 52)


def test_at_torchs_prices_nothing_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert widths(exported_at(BUILT_IN, monkeypatch))["deep"] == (1, 49)


def test_a_plan_without_widening_reads_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    at(BLOCKED, monkeypatch)
    model, selection = calm(Gated()), upscale.Selection(kept=KEPT)
    narrow = upscale.export(model, upscale.plan(model, IMAGE, selection, widen=False))
    assert widths(narrow)["project"][0] == 37


def test_what_is_read_beside_has_zero_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    exported = exported_at(BLOCKED, monkeypatch)
    for name, kept in KEPT.items():
        weight = layers(exported)[name].weight
        assert int(weight.abs().sum((0, 2, 3)).count_nonzero()) == len(kept), name


@pytest.mark.parametrize("prices", PRICES)
def test_windows_become_whole_blocks_too(prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    at(prices, monkeypatch)
    torch.manual_seed(0)
    model = calm(Gated())
    selection = upscale.select(model, IMAGE, amount=0.4, constraint="contiguous")
    exported = upscale.export(model, upscale.plan(model, IMAGE, selection))
    assert relative_error(exported, upscale.mask(model, selection), IMAGE) <= 1e-10
    read = {name: layer.weight.shape[1] for name, layer in layers(exported).items()}
    del read["stem"], read["deep"]  # which read an image, and each channel alone
    assert all(width % 4 == 0 for width in read.values()), read


@pytest.mark.parametrize("number", range(len(PRICES)))
@pytest.mark.parametrize("name", TRACED)
def test_every_network_is_exact_at_blocked_prices(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(PRICES[number], monkeypatch)
    make, example = NETS[name]
    torch.manual_seed(number)
    model = calm(make())
    selection = random_selection(model, (0.25, 0.5, 0.4)[number], seed=number)
    plan = upscale.plan(model, example(1, 12), selection)
    exported, masked = upscale.export(model, plan), upscale.mask(model, selection)
    for batch, size in ((1, 12), (3, 16)):
        error = relative_error(exported, masked, example(batch, size))
        assert error <= 1e-10, f"batch {batch}, size {size}: {error}\n{plan}"


@pytest.mark.parametrize("number", range(len(PRICES)))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(network=networks(sides=("input", "output", "both")))
def test_any_network_is_exact_at_blocked_prices(number: int, network: Network) -> None:
    with pytest.MonkeyPatch.context() as patch:
        at(PRICES[number], patch)
        try:
            assert_exports_exactly(network)
        except upscale.CaptureError as error:
            if EXPECTED_REFUSAL not in str(error):
                raise
