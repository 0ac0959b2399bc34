"""Runtimes: one file adds one, and everything that asks for a target goes by it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import upscale
from tests.targets.fake import Fake
from trials.lively import calm
from trials.masks import random_selection
from upscale.cli.main import main
from upscale.lab.sweep.cells import Cell, GridError
from upscale.targets.prices import Prices
from upscale.targets.runtime import Runtime, calibrate, prices_of, runtime_of
from upscale.targets.target import RUNTIMES, Target
from upscale.tools.optional_packages import MissingPackageError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Target:
    """A target whose runtime is known by its name, and by nothing else."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(RUNTIMES, "fake", "tests.targets.fake")
    return Target(runtime="fake")


class Fork(nn.Module):
    """A tensor that four convolutions read, so that no order serves all."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 1)
        self.readers = nn.ModuleList(nn.Conv2d(24, 8, 1) for _ in range(4))

    def forward(self, x: Tensor) -> list[Tensor]:
        x = torch.relu(self.stem(x))
        return [reader(x) for reader in self.readers]


IMAGE = torch.randn(1, 3, 8, 8)


def test_a_plan_reckons_with_the_prices_of_its_runtime(fake: Target) -> None:
    model = calm(Fork())
    selection = random_selection(model, 0.4, seed=0, empty=False)
    assert upscale.plan(model, IMAGE, selection, target=Target()).copies > 0
    assert upscale.plan(model, IMAGE, selection, target=fake).copies == 0


def test_calibrating_asks_the_runtime_and_is_kept_for_it_alone(fake: Target) -> None:
    before = prices_of(Target())
    measured = calibrate(fake)
    assert (measured.call, measured.block) == (17.0, 4)
    assert prices_of(fake) == measured
    assert prices_of(Target()) == before


def test_a_calibration_of_another_version_does_not_count(
    fake: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(fake)
    monkeypatch.setattr(Fake, "version", lambda self: "fake 2")
    assert prices_of(fake) == Fake.built_in


def test_prune_measures_on_the_runtime(fake: Target) -> None:
    model = calm(Fork())
    with pytest.warns(upscale.SlowerWarning, match=r"the fastest export \(whole\)"):
        pruned = upscale.prune(model, IMAGE, amount=0.5, measure=True, target=fake)
    assert pruned.get_submodule("stem").out_channels == 24
    assert pruned.meta["race"]["unpruned"].versions.startswith("fake 1, Python")


def test_a_race_is_run_on_the_targets_threads(
    fake: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(Fake, "prepare", lambda *given: lambda: seen.append(given[-1].threads))
    target = Target(runtime="fake", threads=3)
    latency = upscale.Latency(0.5)
    with pytest.warns(upscale.AmountWarning):
        upscale.prune(calm(Fork()), IMAGE, amount=latency, target=target, verify=False)
    assert set(seen) == {3}


def test_surveys_sweeps_and_the_command_line_take_the_runtime(
    fake: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    assert upscale.survey(calm(Fork()), IMAGE, target=fake).expected
    assert Cell("upscale:digits", "latency", 0.5, runtime="fake").runtime == "fake"
    assert main(["calibrate", "--runtime", "fake", "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["call"] == 17.0


@pytest.mark.parametrize("name", ["fake", "", ["torch"]])
def test_a_runtime_that_is_none_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(upscale.TargetError, match="it must be one of compile, onnxruntime"):
        Target(runtime=name)
    with pytest.raises(GridError, match="it must be one of compile, onnxruntime"):
        Cell("upscale:digits", "latency", 0.5, runtime=name)


def test_widths_are_multiples_of_what_suits_the_target(
    fake: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, options = calm(Fork()), {"amount": 0.4, "constraint": "segment", "round_to": "target"}

    def widths(target: Target | None) -> set[int]:
        kept = upscale.select(model, IMAGE, target=target, **options).kept
        pruned = upscale.prune(model, IMAGE, target=target, **options)
        assert pruned.get_submodule("stem").out_channels == len(kept["readers.0"])
        return {len(kept[f"readers.{number}"]) for number in range(4)}

    aligned = replace(Fake.built_in, align=6)
    assert widths(fake) == {16}  # in blocks of 8
    monkeypatch.setattr(Fake, "built_in", aligned)
    assert widths(fake) in ({12}, {18})
    with pytest.raises(upscale.SelectionError, match="round_to is 'tarjet'"):
        upscale.select(model, IMAGE, amount=0.4, round_to="tarjet")


def test_a_missing_package_is_said_when_something_shall_run(
    fake: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fake, "needs", ("no_such_package",))
    monkeypatch.setattr(Fake, "extra", "fakes")
    model, said = calm(Fork()), r"the runtime fake needs no_such_package: pip install 'upscale\[fak"
    with pytest.raises(MissingPackageError, match=said):
        calibrate(fake)
    with pytest.raises(MissingPackageError, match=said):
        upscale.prune(model, IMAGE, amount=0.5, measure=True, target=fake)
    upscale.prune(model, IMAGE, amount=0.5, target=fake)  # a plan needs prices alone


@pytest.mark.parametrize("name", RUNTIMES)
def test_every_file_is_the_runtime_that_it_is_named_after(name: str) -> None:
    runtime = runtime_of(Target(runtime=name))
    assert isinstance(runtime, Runtime)
    assert runtime.name == name
    assert Prices.from_json(asdict(runtime.built_in)) == runtime.built_in


def test_importing_upscale_imports_no_runtime() -> None:
    code = (
        "import sys, upscale; from upscale.targets.target import RUNTIMES\n"
        "print(*(name for name in RUNTIMES.values() if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
