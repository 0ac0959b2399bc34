"""Runtimes that see the whole graph: what they run is the model, and what they cost is measured."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.lively import calm
from upscale.capture import Example
from upscale.targets import graph_runtime
from upscale.targets.prices import Prices
from upscale.targets.runtime import example_for, pricing_for, runtime_of
from upscale.targets.target import Target

HERE = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            not all(importlib.util.find_spec(n) for n in runtime_of(Target(runtime=name)).needs)
            or (name == "compile" and shutil.which("g++") is None),
            reason=f"needs what {name} needs",
        ),
    )
    for name in ("onnxruntime", "openvino", "compile")
]
INSTALLED = [each for each in HERE if each.values != ("compile",)]


class TwoInputs(nn.Module):
    """A model that takes two tensors and gives two."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.norm(self.conv(x)))
        return x, self.head(x.mean((2, 3))) * scale


def numbers(outputs: Any) -> list[Tensor]:
    """The outputs of a call, whoever ran it."""
    held = outputs.values() if hasattr(outputs, "values") else outputs
    return [torch.as_tensor(np.asarray(each)) for each in held]


@pytest.mark.parametrize("name", HERE)
def test_what_is_run_is_the_model_on_the_targets_batch(name: str) -> None:
    torch.manual_seed(0)
    model = calm(TwoInputs()).float().eval()
    target = Target(runtime=name, batch=3)
    example = example_for(target, Example.of((torch.randn(1, 3, 8, 8), torch.randn(1, 4))))
    call = runtime_of(target).prepare(model, example, target)
    with torch.inference_mode():
        found, expected = numbers(call()), model(*example.args)
    assert len(found) == 2
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.heavy  # thirty small networks, each prepared
@pytest.mark.parametrize("name", INSTALLED)
def test_prices_are_measured_and_have_a_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, small in (("RUNS", 3), ("SIDE", 7), ("TIMES", 2), ("FEATURES", 64)):
        monkeypatch.setattr(graph_runtime, constant, small)
    monkeypatch.setattr(graph_runtime, "CHANNELS", 32)
    monkeypatch.setattr(graph_runtime, "KEPT", 16)
    monkeypatch.setattr(graph_runtime, "WIDTH", 32)
    prices = runtime_of(Target(runtime=name)).measure(Target(runtime=name))
    assert isinstance(prices, Prices)
    assert prices.block in graph_runtime.BLOCKS
    assert prices.align >= 1
    assert min(prices.mac, prices.call, prices.odd, prices.outer.gather_byte) > 0


def test_widths_with_slower_kernels_are_told_by_what_they_take() -> None:
    taken = {"two": 0.0, "more": 100.0, "channelwise": 100.0}
    for beyond in graph_runtime.BLOCKS:
        odd = beyond == 1
        taken |= {f"more {beyond}": 130.0 if odd else 99.0}
        taken |= {f"channelwise {beyond}": 600.0 if odd else 95.0}
    assert graph_runtime._aligned(taken) == (4, 1.3, 6.0)
    even = {name: min(own, 100.0) for name, own in taken.items()}
    assert graph_runtime._aligned(even) == (1, 1.0, 1.0)


@pytest.mark.parametrize(("block", "width"), [(1, 64), (8, 64), (16, 64)])
def test_the_block_is_the_one_whose_rounding_explains_the_times(
    block: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(graph_runtime.GraphRuntime):
        name = "told"

        def version(self) -> str:
            return ""

        def prepare(self, model: nn.Module, example: Example, target: Target) -> Any:
            raise AssertionError("nothing runs here")

        def measure(self, target: Target) -> Prices:
            raise AssertionError("nothing is measured here")

        def _ns(self, nets: Any, x: Tensor, target: Target) -> dict[str, float]:
            return {name: float((-(-int(name) // block) * block) ** 2) for name in nets}

    assert Told().block(Target()) == block


def test_how_an_example_lies_says_nothing_of_how_tensors_lie_within() -> None:
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    target = Target(runtime="onnxruntime", memory_format="channels_last", batch=2)
    assert pricing_for(Example.of(x), target).target == replace(target, memory_format="contiguous")


@pytest.mark.parametrize("name", INSTALLED)
def test_an_input_that_a_runtime_has_no_word_for_is_refused(name: str) -> None:
    model, x = nn.Linear(4, 2).bfloat16().eval(), torch.randn(1, 4).bfloat16()
    target = Target(runtime=name, dtype="bfloat16")
    with pytest.raises(upscale.TargetError, match="try float32"):
        runtime_of(target).prepare(model, Example.of(x), target)()


@pytest.mark.parametrize("name", INSTALLED)
def test_prune_races_on_the_runtime_and_exports_exactly(name: str) -> None:
    torch.manual_seed(0)
    model = calm(nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 8, 3))).float()
    target = Target(runtime=name)
    pruned = upscale.prune(
        model, torch.randn(1, 3, 32, 32), amount=0.75, measure=True, target=target
    )
    assert pruned.meta["race"]["unpruned"].versions.startswith(f"{name} ")
    assert pruned.meta["race"]["unpruned"].peak_bytes == 0
    assert pruned.meta["verified"].exact


def test_a_model_that_cannot_be_compiled_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler\nmore of it")

    class Refused(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    monkeypatch.setattr(torch, "compile", lambda model, **options: refuse)
    target = Target(runtime="compile")
    with pytest.raises(upscale.TargetError, match=r"does not take this model: no compiler$"):
        runtime_of(target).prepare(Refused(), Example.of(torch.ones(1)), target)
