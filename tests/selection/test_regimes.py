"""Amounts are met, regimes hold, limits are kept."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.lively import calm
from trials.nets import NETS, TRACED
from upscale import Macs, Parameters, Selection
from upscale.capture import Example
from upscale.model.layers import layers, weight_of
from upscale.verify import compare


class Block(nn.Module):
    """A stream of 24 channels that two blocks add to and three layers read, and a wide head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.a, self.b = nn.Conv2d(24, 16, 1), nn.Conv2d(16, 24, 1)
        self.c, self.d = nn.Conv2d(24, 16, 1), nn.Conv2d(16, 24, 1)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = x + self.b(self.a(x).relu())
        x = x + self.d(self.c(x).relu())
        return self.head(x.mean((2, 3)))


# Some of these networks cannot be pruned as asked; that they say so has a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore::upscale.AmountWarning")

X = torch.randn(2, 3, 8, 8)
STREAM = ("a", "c", "head")


def block() -> nn.Module:
    torch.manual_seed(0)
    return calm(Block())


def note(places: dict[str, int], name: str, layer: nn.Module, given: object, out: Tensor) -> None:
    places[name] = out.numel() // out.shape[-1 if isinstance(layer, nn.Linear) else 1]


def pruned_share(model: nn.Module, selection: Selection, measure: str) -> float:
    """The share of weights, or of multiplications, that masks make zero: counted by running."""
    masked = upscale.mask(model, selection)
    total, zero = 0, 0
    places: dict[str, int] = {}
    for name, layer in layers(masked).items():
        layer.register_forward_hook(partial(note, places, name))
    masked(X)
    for name, layer in layers(masked).items():
        times = places[name] if measure == "macs" else 1
        total += weight_of(layer).numel() * times
        zero += int((weight_of(layer) == 0).sum()) * times
    return zero / total


@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("constraint", ["none", "segment", "contiguous"])
@pytest.mark.parametrize("amount", [Parameters(0.3), Macs(0.25), Parameters(0.0)])
def test_shares_of_parameters_and_macs_are_met(
    amount: upscale.Amount, constraint: str, scope: str
) -> None:
    model = block()
    found = upscale.select(model, X, amount=amount, constraint=constraint, scope=scope)
    counted = pruned_share(model, found, amount.measure)
    assert found.reached is not None
    assert found.reached.share == pytest.approx(counted)
    assert counted == pytest.approx(amount.share, abs=0.03)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("constraint", ["none", "segment"])
@pytest.mark.parametrize("name", TRACED)
def test_local_shares_are_met_within_one_channel(name: str, constraint: str, side: str) -> None:
    make, example = NETS[name]
    model = calm(make())
    found = upscale.select(model, example(1, 12), amount=0.3, constraint=constraint, side=side)
    for layer, kept in found.kept.items():
        assert found.reached is not None
        width = found.reached.widths[layer]
        # Where channels were merged into features, those of a channel go together.
        together = {"Flattened": 16, "WrappedWindows": 4}.get(name, 1)
        if width > 1 and len(tuple(kept)) < width:
            assert abs(len(tuple(kept)) - 0.7 * width) <= together * 1.001


@pytest.mark.parametrize("constraint", ["none", "segment", "contiguous"])
@pytest.mark.parametrize("name", TRACED)
def test_what_is_selected_exports_exactly(name: str, constraint: str) -> None:
    make, example = NETS[name]
    torch.manual_seed(0)
    model, x = calm(make()), example(2, 12)
    found = upscale.select(model, x, amount=0.4, constraint=constraint)
    plan = upscale.plan(model, x, found)
    exported = upscale.export(model, plan)
    compared = compare(exported, upscale.mask(model, found), Example.of(x))
    assert compared.relative_error <= 1e-10
    if constraint == "contiguous":
        whole = upscale.plan(model, x, Selection(kept={}))
        assert plan.copied_bytes <= whole.copied_bytes


def test_segments_prune_alike_and_unconstrained_layers_need_not() -> None:
    model = block()
    alike = upscale.select(model, X, amount=0.5, constraint="segment")
    free = upscale.select(model, X, amount=0.5)
    assert len({alike.kept[name] for name in STREAM}) == 1
    assert len({free.kept[name] for name in STREAM}) == 3


def test_summed_layers_drop_the_same_outputs_in_a_segment() -> None:
    model = block()
    alike = upscale.select(model, X, amount=0.5, constraint="segment", side="output")
    assert len({alike.kept[name] for name in ("stem", "b", "d")}) == 1
    assert "head" not in alike.kept  # the model's output stays whole


def test_windows_lie_side_by_side_in_one_order() -> None:
    model = block()
    found = upscale.select(model, X, amount=0.5, constraint="contiguous", slack=0.25)
    windows = [set(found.windows[name]) for name in STREAM]
    assert all(len(window) <= 15 for window in windows)
    assert upscale.ordering.solve(windows).cost == 0  # type: ignore[attr-defined]
    assert any(set(found.kept[name]) < set(found.windows[name]) for name in STREAM)


def test_single_branch_segments_are_all_that_is_pruned_if_asked() -> None:
    found = upscale.select(block(), X, amount=0.5, segments="single-branch")
    assert set(found.kept) == {"b", "d"}


def test_overrides_ignored_layers_floors_and_multiples_hold() -> None:
    model = block()
    found = upscale.select(
        model, X, amount=0.5, overrides={"a": 0.25}, ignore=["h*"], round_to=4, floor=2
    )
    counts = {name: len(tuple(kept)) for name, kept in found.kept.items()}
    assert counts.pop("a") in (16, 20)  # three quarters of 24 lie between two multiples
    assert counts == {"b": 8, "c": 12, "d": 8, "head": 24}
    least = upscale.select(model, X, amount=0.97, scope="global", floor=5)
    assert min(len(tuple(kept)) for kept in least.kept.values()) == 5


def test_an_amount_that_cannot_be_met_says_how_far_it_got() -> None:
    with pytest.warns(upscale.AmountWarning, match=r"asked 95.00% of parameters, reached \d"):
        found = upscale.select(block(), X, amount=Parameters(0.95), scope="global", floor=4)
    assert found.reached is not None
    assert "layers are at their floor" in found.reached.stopped


@pytest.mark.parametrize("after", ["norm", "layer"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_exported_shares_count_what_the_export_does_without(side: str, after: str) -> None:
    model = block()
    amount = Parameters(0.5, exported=True)
    found = upscale.select(model, X, amount=amount, side=side, after=after)
    exported = upscale.export(model, upscale.plan(model, X, found, order="none"))
    left = sum(weight_of(layer).numel() for layer in layers(exported).values())
    total = sum(weight_of(layer).numel() for layer in layers(model).values())
    assert found.reached is not None
    assert 1 - left / total == pytest.approx(found.reached.exported_parameters)
    assert 1 - left / total == pytest.approx(0.5, abs=0.04)


def test_what_was_pruned_stays_pruned_within_a_selection() -> None:
    model = block()
    first = upscale.select(model, X, amount=0.3, importance="random")
    then = upscale.select(model, X, amount=0.6, importance="l1", within=first)
    for name, kept in then.kept.items():
        assert set(kept) < set(first.kept[name])


def test_global_keeps_the_highest_scores_of_all() -> None:
    model = block()

    def criterion(weight: Tensor, context: object) -> Tensor:
        return weight.abs().sum((0, *range(2, weight.ndim)))

    found = upscale.select(model, X, amount=0.4, importance=criterion, scope="global")
    kept, gone = [], []
    for name, own in found.kept.items():
        scores = criterion(weight_of(model.get_submodule(name)), None).tolist()
        kept += [scores[channel] for channel in own] if len(tuple(own)) > 1 else []
        gone += [s for channel, s in enumerate(scores) if channel not in own]
    assert max(gone) <= min(kept)
    assert len(gone) / (len(gone) + len(kept)) == pytest.approx(0.4, abs=0.01)


BAD = {
    "a pattern that matches nothing": ({"ignore": ["nope*"]}, "ignore: 'nope\\*' matches no"),
    "an override that matches nothing": ({"overrides": {"x": 0.1}}, "overrides: 'x' matches no"),
    "an override of everything": ({"overrides": {"a": 1.0}}, "amount is 1.0"),
    "a floor below zero": ({"floor": -1}, "floor is -1"),
    "a multiple of zero": ({"round_to": 0}, "round_to is 0"),
    "a negative slack": ({"slack": -0.1}, "slack is -0.1"),
    "contiguous outputs": ({"side": "output", "constraint": "contiguous"}, "input side only"),
    "one pattern for a list": ({"ignore": "head"}, "must be a list of patterns"),
    "other segments": ({"segments": "some"}, "segments is 'some'"),
    "an amount below zero": ({"amount": -0.1}, "amount is -0.1"),
    "an amount of nan": ({"amount": float("nan")}, "amount is nan"),
    "parameters of everything": ({"amount": 1}, "amount is 1"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_request_that_makes_no_sense_is_refused(mistake: str) -> None:
    given, message = BAD[mistake]
    with pytest.raises(upscale.SelectionError, match=message):
        upscale.select(block(), X, **{"amount": 0.5, **given})


def test_columns_of_every_layer_but_the_first_are_chosen_from() -> None:
    model = block()
    assert set(upscale.select(model, X, amount=0.5).kept) == set(layers(model)) - {"stem"}
