"""torch and TorchScript: what they run is the model, laid out as the target has it."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import upscale
from trials.lively import calm
from upscale.capture import Example
from upscale.targets import on_torchscript, racing
from upscale.targets.racing import Measurement
from upscale.targets.runtime import example_for, runtime_of
from upscale.targets.target import Target


def test_races_are_run_as_the_target_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def told(contestants: dict[str, Any], **options: Any) -> dict[str, Measurement]:
        for call in contestants.values():
            (x,) = call.args
            seen.append((len(x), x.is_contiguous(memory_format=torch.channels_last)))
            assert isinstance(call.func, torch.jit.ScriptModule)
        return {n: Measurement(1.0 + (n == "unpruned"), 0, 0, 1, 0, 1, 0, "") for n in contestants}

    monkeypatch.setattr(racing, "race", told)
    target = Target(runtime="torchscript", memory_format="channels_last", batch=3)
    model = calm(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3)))
    upscale.prune(model, torch.randn(1, 3, 8, 8), amount=0.5, measure=True, target=target)
    assert len(seen) >= 3
    assert set(seen) == {(3, True)}


@pytest.mark.parametrize("runtime", ["torch", "torchscript"])
def test_a_prepared_model_keeps_its_format_and_its_numbers(runtime: str) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    x = torch.randn(2, 8, 9, 9)
    target = Target(runtime=runtime, memory_format="channels_last", batch=2)
    call = runtime_of(target).prepare(model, example_for(target, Example.of(x)), target)
    with torch.inference_mode():
        result = call()
    assert isinstance(result, torch.Tensor)
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, model(x))
    weight = model.get_parameter("0.weight")
    assert weight.is_contiguous(), "the model itself stays as it was"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_what_a_race_traced_is_let_go() -> None:
    model = nn.Sequential(nn.Conv2d(64, 512, 7), nn.BatchNorm2d(512)).eval()  # 6.4 MB
    x = Example.of(torch.randn(1, 64, 8, 8))

    def held() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    on_torchscript.RUNTIME.compiled(model, x)
    before = held()
    for _ in range(30):
        on_torchscript.RUNTIME.compiled(model, x)(*x.args)
    gc.collect()
    assert held() - before < 10 * 6_400_000
