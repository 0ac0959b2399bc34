"""Calibrations: measured once, kept by machine, version and target, and used by plans."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import upscale
from upscale.targets import on_torch
from upscale.targets.prices import BUILT_IN
from upscale.targets.runtime import cache_path, calibrate, prices_of
from upscale.targets.target import Target


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_calibration_is_kept_and_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_torch, "RUNS", 2)
    target = Target(batch=2)
    assert prices_of(target) == BUILT_IN
    measured = calibrate(target)
    assert measured != BUILT_IN
    assert prices_of(replace(target, memory_format="channels_last", batch=1)) == measured
    assert prices_of(replace(target, threads=64)) == BUILT_IN
    assert all(value > 0 for value in (measured.mac, measured.call, measured.inner.gather_byte))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}'])
def test_a_broken_cache_counts_as_none(text: str) -> None:
    cache_path().parent.mkdir(parents=True)
    cache_path().write_text(text)
    assert prices_of(Target()) == BUILT_IN


WRITTEN_BEFORE = {
    "outer": {
        "gather_byte": 0.1,
        "run_byte": 0.2,
        "run_row": 3.0,
        "slice_byte": 0.4,
        "join_byte": 0.5,
    },
    "inner": {
        "gather_byte": 0.6,
        "run_byte": 0.7,
        "run_row": 8.0,
        "slice_byte": 0.9,
        "join_byte": 1.0,
    },
    "call": 11.0,
    "piece": 12.0,
    "mac": 13.0,
    "channelwise_mac": 14.0,
    "weight_byte": 15.0,
    "pass_byte": 16.0,
    "block": 17,
    "tail": 18.0,
}


def test_a_file_of_calibrations_keeps_its_form() -> None:
    """Somebody measured these with an earlier version: they still count, for their runtime."""
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {platform.node()}"
    key = f"{machine}; torch {torch.__version__}; torchscript cpu float32 2"
    cache_path().parent.mkdir(parents=True)
    cache_path().write_text(json.dumps({key: WRITTEN_BEFORE, "somewhere else": {}}))
    prices = prices_of(Target(runtime="torchscript", threads=2))
    assert (prices.outer.run_row, prices.inner.join_byte, prices.block) == (3.0, 1.0, 17)
    assert prices_of(Target(runtime="torch", threads=2)) == BUILT_IN


def test_only_the_processor_can_be_calibrated() -> None:
    with pytest.raises(upscale.TargetError, match="cuda"):
        calibrate(Target(device="cuda"))
