"""Plans for a target: exact whatever it costs, and cheaper where it says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.comparing import relative_error
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS, TRACED
from upscale.capture import Example
from upscale.model.layers import layers
from upscale.rewrite.gather import Gather
from upscale.targets.prices import BUILT_IN, CopyPrices, Prices

# Whatever avoids a copy, or a width that is no multiple of eight, pays at these prices.
DEAR = CopyPrices(gather_byte=1e6, run_byte=1e6, run_row=1e6, slice_byte=0.0, join_byte=1e6)
COPIES_ARE_DEAR = replace(BUILT_IN, outer=DEAR, inner=DEAR)
TAILS_ARE_DEAR = replace(COPIES_ARE_DEAR, mac=1e5, tail=8.0)
ARITHMETIC_IS_DEAR = replace(BUILT_IN, mac=1e6)
PIECES_ARE_DEAR = replace(BUILT_IN, piece=1e6)


class Streams(nn.Module):
    """A stream that several convolutions read."""

    def __init__(self, width: int = 24, readers: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.readers = nn.ModuleList(nn.Conv2d(width, 16, 3, padding=1) for _ in range(readers))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = torch.relu(self.stem(x))
        return [reader(x) for reader in self.readers]


class PreActivated(nn.Module):
    """Readers behind norms of their own, as in a DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.more = nn.Conv2d(3, 16, 1), nn.Conv2d(3, 8, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(24) for _ in range(3))
        self.readers = nn.ModuleList(nn.Conv2d(24, 8, 1) for _ in range(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = torch.cat([self.stem(x), self.more(x)], 1)
        pairs = zip(self.norms, self.readers, strict=True)
        return [reader(torch.relu(norm(x))) for norm, reader in pairs]


def at(prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans reckon with given prices."""
    monkeypatch.setattr("upscale.targets.runtime.prices_of", lambda target: prices)


def error_of(model: nn.Module, example: Tensor, **options: Any) -> float:
    """How far an export of random masks is from the masked model."""
    selection = random_selection(model, 0.4, seed=1, empty=False)
    exported = upscale.export(model, upscale.plan(model, example, selection, **options))
    masked = upscale.mask(model, selection)
    return relative_error(exported, masked, example)


def runs(model: nn.Module, example: Example) -> bool:
    """Whether a model takes an example."""
    try:
        model(*example.args, **example.kwargs)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(
    ("prices", "memory"),
    [
        (COPIES_ARE_DEAR, torch.contiguous_format),
        (TAILS_ARE_DEAR, torch.channels_last),
        (ARITHMETIC_IS_DEAR, torch.channels_last),
        (PIECES_ARE_DEAR, torch.contiguous_format),
    ],
)
@pytest.mark.parametrize("name", TRACED)
def test_plans_at_any_prices_are_exact(
    name: str, memory: torch.memory_format, prices: Prices, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(prices, monkeypatch)
    make, example = NETS[name]

    def laid_out(x: Any) -> Any:
        return x.contiguous(memory_format=memory) if x.dim() == 4 else x

    for seed in range(2):
        torch.manual_seed(seed)
        model = calm(make())
        selection = random_selection(model, (0.25, 0.6)[seed], seed)
        if not runs(model, Example.of(example(1, 12)).map(laid_out)):
            pytest.skip("the model itself takes no channels-last input: it has views")
        plan = upscale.plan(model, Example.of(example(1, 12)).map(laid_out), selection)
        exported, masked = upscale.export(model, plan), upscale.mask(model, selection)
        for batch, size in ((1, 12), (3, 16)):
            given = Example.of(example(batch, size)).map(laid_out)
            error = relative_error(exported, masked, given)
            assert error <= 1e-10, f"seed {seed}, batch {batch}, size {size}: {error}\n{plan}"


def test_dear_copies_are_widened_away(monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = calm(Streams()), torch.randn(1, 3, 8, 8)
    selection = random_selection(model, 0.4, seed=0, empty=False)
    assert upscale.plan(model, example, selection).copies > 0
    at(COPIES_ARE_DEAR, monkeypatch)
    assert upscale.plan(model, example, selection).copies == 0
    assert upscale.plan(model, example, selection, widen=False).copies > 0


def test_copies_behind_which_norms_stand_are_widened_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, example = calm(PreActivated()), torch.randn(1, 3, 8, 8)
    selection = random_selection(model, 0.4, seed=0, empty=False)
    narrow = upscale.plan(model, example, selection, widen=False)
    at(PIECES_ARE_DEAR, monkeypatch)
    wide = upscale.plan(model, example, selection)
    pieces = [sum(len(edge.pieces) for edge in plan.graph.edges) for plan in (wide, narrow)]
    assert pieces[0] < pieces[1]


class Joined(nn.Module):
    """Readers that concatenate for themselves, as in a DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.more = nn.Conv2d(3, 16, 1), nn.Conv2d(3, 8, 1)
        self.readers = nn.ModuleList(nn.Conv2d(24, 8, 1) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        a, b = self.stem(x), self.more(x)
        return [reader(torch.cat([a, b], 1)) for reader in self.readers]


@pytest.mark.parametrize(("join_byte", "read"), [(0.0, 24), (1e3, 21)])
def test_tensors_are_joined_whole_where_that_is_faster_than_slices(
    join_byte: float, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = replace(BUILT_IN.inner, run_byte=1e3, join_byte=join_byte)
    at(replace(BUILT_IN, inner=inner), monkeypatch)
    model = calm(Joined())
    example = torch.randn(1, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    # Each keeps one stretch of either tensor: no gap is there to be filled.
    kept = {"readers.0": [*range(14), *range(16, 23)], "readers.1": [*range(2, 16), *range(17, 24)]}
    selection = upscale.Selection(kept=kept)
    exported = upscale.export(model, upscale.plan(model, example, selection))
    assert [layers(exported)[name].in_channels for name in kept] == [read, read]
    masked = upscale.mask(model, selection)
    assert relative_error(exported, masked, example) <= 1e-10


def test_a_widened_layer_has_zero_weights_for_what_it_does_not_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at(COPIES_ARE_DEAR, monkeypatch)
    model, example = calm(Streams()), torch.randn(1, 3, 8, 8)
    selection = random_selection(model, 0.4, seed=0, empty=False)
    exported = upscale.export(model, upscale.plan(model, example, selection))
    for name, layer in layers(exported).items():
        used = int(layer.weight.flatten(2).abs().sum(dim=(0, 2)).count_nonzero())
        assert used <= len(selection.kept[name]), name
    wider = [n for n, m in layers(exported).items() if m.in_channels > len(selection.kept[n])]
    assert wider


def test_where_tails_are_dear_convolutions_make_whole_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at(TAILS_ARE_DEAR, monkeypatch)
    model = calm(nn.Sequential(nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, 8, 1)))
    example = torch.randn(1, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    selection = upscale.Selection(kept={"2": range(21)})
    rounded = upscale.export(model, upscale.plan(model, example, selection))
    narrow = upscale.export(model, upscale.plan(model, example, selection, widen=False))
    assert (rounded.get_submodule("0").out_channels, narrow.get_submodule("0").out_channels) == (
        24,
        21,
    )


def test_small_savings_are_not_worth_a_wider_layer() -> None:
    model, example = calm(Streams()), torch.randn(1, 3, 8, 8)
    selection = random_selection(model, 0.4, seed=0, empty=False)
    plans = [upscale.plan(model, example, selection, widen=widen) for widen in (True, False)]
    assert plans[0].weights.cuts == plans[1].weights.cuts


def test_channels_that_lie_side_by_side_are_gathered_as_rows() -> None:
    model, x = calm(Streams(160, readers=9)), torch.randn(1, 3, 32, 32)
    selection = random_selection(model, 0.4, seed=0, empty=False)
    for given, rows in ((x, False), (x.contiguous(memory_format=torch.channels_last), True)):
        plan = upscale.plan(model, given, selection, widen=False)
        exported = upscale.export(model, plan)
        assert {m.rows for m in exported.modules() if isinstance(m, Gather)} == {rows}
        assert error_of(model, given, widen=False) <= 1e-10
