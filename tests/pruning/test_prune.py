"""Pruning in one call: measured, to a latency, fused."""

from __future__ import annotations

import copy
import importlib
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import upscale
from trials.comparing import relative_error
from trials.lively import calm
from trials.nets import NETS, TRACED
from upscale.pruning.fuse import fuse
from upscale.targets import racing
from upscale.targets.racing import Measurement


def small() -> nn.Module:
    return calm(
        nn.Sequential(
            *(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout()),
            *(nn.Conv2d(16, 16, 3), nn.Identity(), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(16 * 16, 4)),
        )
    )


IMAGE = torch.randn(1, 3, 8, 8)


def pretend(ratios: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let races end as given, by name; the contestants of each come back."""
    seen: list[list[str]] = []

    def told(contestants: dict[str, Any], **options: Any) -> dict[str, Measurement]:
        seen.append(list(contestants))
        outputs = [call() for call in contestants.values()]
        assert len({output.shape for output in outputs}) == 1
        return {n: Measurement(ratios[n], 0, 0, 1, 0, 1, 0, "") for n in contestants}

    monkeypatch.setattr(racing, "race", told)
    return seen


def test_the_fastest_export_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend({"unpruned": 2.0, "planned": 1.0, "narrow": 1.5, "whole": 1.9}, monkeypatch)
    pruned = upscale.prune(small(), IMAGE, amount=0.5, measure=True)
    assert pruned.get_submodule("0").out_channels == 8
    assert pruned.meta["race"]["planned"].median_ms == 1.0


def test_pruning_that_does_not_pay_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend({"unpruned": 1.0, "planned": 1.5, "narrow": 1.4, "whole": 1.05}, monkeypatch)
    model = small()
    with pytest.warns(upscale.SlowerWarning, match=r"1\.05 times.*1\.50 times"):
        pruned = upscale.prune(model, IMAGE, amount=0.5, measure=True)
    assert pruned.get_submodule("0").out_channels == 16
    selection = upscale.select(model, IMAGE, amount=0.5)
    masked = upscale.mask(model, selection)
    assert relative_error(pruned, masked, IMAGE) <= 1e-10


class Residual(nn.Module):
    """Two layers that are added, so that their outputs can lack different channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.reader = (nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reader(self.a(x) + self.b(x))  # type: ignore[no-any-return]


def test_sums_of_whole_operands_race_where_outputs_are_pruned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    times = {"unpruned": 2.0, "planned": 1.8, "narrow": 1.7, "whole sums": 1.0, "whole": 1.9}
    (seen, model) = pretend(times, monkeypatch), Residual()
    pruned = upscale.prune(model, torch.randn(1, 3, 8, 8), amount=0.5, side="output", measure=True)
    assert "whole sums" in seen[0]
    assert not pruned.meta["plan"].graph.inserted


def test_a_latency_is_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def taken(contestants: dict[str, Any], **options: Any) -> dict[str, Measurement]:
        width = contestants["pruned"].func.get_submodule("0").out_channels
        times = {"unpruned": 16.0, "pruned": float(width)}
        return {n: Measurement(times[n], 0, 0, 1, 0, 1, 0, "") for n in contestants}

    monkeypatch.setattr(racing, "race", taken)
    pruned = upscale.prune(small(), IMAGE, amount=upscale.Latency(0.75), progress=told.append)
    assert pruned.get_submodule("0").out_channels == 12
    assert told
    assert all("of the latency" in line for line in told)


def test_a_latency_out_of_reach_says_how_far_it_got(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend({"unpruned": 1.0, "pruned": 0.9}, monkeypatch)
    with pytest.warns(upscale.AmountWarning, match=r"still 90\.0%"):
        upscale.prune(small(), IMAGE, amount=upscale.Latency(0.5), verify=False)


def test_a_latency_is_for_prune_alone() -> None:
    with pytest.raises(upscale.SelectionError, match=r"upscale\.prune"):
        upscale.select(small(), IMAGE, amount=upscale.Latency(0.5))  # type: ignore[arg-type]
    with pytest.raises(upscale.SelectionError, match="between 0 and 1"):
        upscale.Latency(1.5)


def test_fused_exports_have_no_norms_left_and_compute_the_same() -> None:
    model = small()
    plain = upscale.prune(model, IMAGE, amount=0.3)
    fused = upscale.prune(model, IMAGE, amount=0.3, fuse=True)
    kinds = {type(module) for module in fused.modules()}
    assert not kinds & {nn.BatchNorm2d, nn.Dropout, nn.Identity}
    torch.testing.assert_close(fused(IMAGE), plain(IMAGE))


@pytest.mark.parametrize("name", TRACED)
def test_fusing_keeps_what_a_model_computes(name: str) -> None:
    make, example = NETS[name]
    torch.manual_seed(0)
    model = calm(make())
    exported = upscale.export(model, upscale.plan(model, example(1, 12), upscale.Selection({})))
    with warnings.catch_warnings():
        # torch copies some graphs in a way it has deprecated itself.
        warnings.simplefilter("ignore", FutureWarning)
        twin = copy.deepcopy(exported.double().eval())
    fused = fuse(twin)
    assert relative_error(fused, exported, example(2, 12)) <= 1e-10


def test_only_a_model_in_evaluation_mode_is_fused() -> None:
    with pytest.raises(upscale.PlanError, match="evaluation mode"):
        upscale.prune(small().train(), IMAGE, amount=0.3, verify=False, fuse=True)


def test_a_selection_says_what_is_pruned_in_the_place_of_an_amount() -> None:
    model = small()
    selection = upscale.select(model, IMAGE, amount=0.4, importance="l1")
    pruned = upscale.prune(model, IMAGE, selection=selection)
    assert relative_error(pruned, upscale.mask(model, selection), IMAGE) <= 1e-10
    inputs = [torch.randn(128, 3, 8, 8) for _ in range(3)]
    recovered = upscale.prune(model, IMAGE, selection=selection, data=inputs, recover=True)
    masked = upscale.recover(model, selection, inputs)
    assert relative_error(recovered, masked, IMAGE) <= 1e-6
    assert recovered.get_submodule("0").out_channels == pruned.get_submodule("0").out_channels


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "amount=.*selection="),
        ({"amount": 0.1, "selection": upscale.Selection({})}, "one"),
        ({"selection": upscale.Selection({}), "scope": "global"}, "scope has no say"),
        ({"selection": upscale.Selection({}), "steps": 2}, "in one step"),
        ({"selection": upscale.Selection({"nowhere": [0]})}, "no convolution or linear"),
        ({"selection": {"0": [0]}}, "expected a Selection"),
    ],
)
def test_what_to_prune_is_said_once(given: dict[str, Any], said: str) -> None:
    with pytest.raises(upscale.SelectionError, match=said):
        upscale.prune(small(), IMAGE, **given)


def test_steps_recover_each_and_tell_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    shares: list[int] = []
    module = importlib.import_module("upscale.pruning.prune")
    refit = module.refit

    def counting(model: nn.Module, selection: upscale.Selection, *own: Any, **named: Any) -> Any:
        shares.append(sum(len(tuple(kept)) for kept in selection.kept.values()))
        return refit(model, selection, *own, **named)

    monkeypatch.setattr(module, "refit", counting)
    inputs = [torch.randn(128, 3, 8, 8) for _ in range(3)]
    given: dict[str, Any] = {"amount": 0.6, "data": inputs, "recover": True, "steps": 3}
    upscale.prune(small(), IMAGE, progress=lines.append, **given)
    assert [line for line in lines if line.startswith("step")] == [
        f"step {n} of 3" for n in (1, 2, 3)
    ]
    assert len(shares) == 3
    assert shares == sorted(shares, reverse=True)
