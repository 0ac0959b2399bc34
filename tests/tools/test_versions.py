"""What is done where torch is old computes the same where it is new."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from upscale.tools import versions


class Padding(nn.Module):
    """Two inputs of one width, which is padded to an even one."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        both = x + y
        return F.pad(both, (0, 1)) if both.shape[-1] % 2 else both


class Unguarded:
    """A program as old versions have it: its module takes whatever it is given."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def module(self) -> Any:
        known = inspect.signature(self._program.module).parameters
        return self._program.module(**{"check_guards": False} if "check_guards" in known else {})


@pytest.fixture(scope="module")
def guarded() -> Any:
    free = {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}
    program: Any = torch.export.export(
        Padding(),
        (torch.ones(2, 3, 8), torch.ones(2, 3, 8)),
        dynamic_shapes=(free, free),
        strict=False,
    )
    return versions.module_of(Unguarded(program))  # type: ignore[arg-type]


def run(guarded: Any, x: Tensor, y: Tensor) -> Any:
    return fx.Interpreter(guarded).run(x, y)


@pytest.mark.parametrize("shape", [(2, 3, 8), (5, 3, 12)])
def test_sizes_that_decide_alike_are_taken(guarded: Any, shape: tuple[int, ...]) -> None:
    x, y = torch.randn(shape), torch.randn(shape)
    assert torch.equal(run(guarded, x, y), Padding()(x, y))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((2, 3, 7), (2, 3, 7), r"% 2 == 0"),
        ((2, 4, 8), (2, 4, 8), r"\.size\(\)\[1\] == 3"),
        ((2, 3, 8), (2, 3, 10), r"\.size\(\)\[2\] == "),
    ],
)
def test_sizes_that_may_decide_otherwise_are_refused(
    guarded: Any, first: tuple[int, ...], second: tuple[int, ...], said: str
) -> None:
    with pytest.raises(AssertionError, match=f"Guard failed: .*{said}"):
        run(guarded, torch.ones(first), torch.ones(second))


def test_a_buffer_is_bound_to_a_proxy_and_other_attributes_as_ever() -> None:
    holder: Any = nn.BatchNorm1d(2)
    proxy = fx.Proxy(fx.Graph().placeholder("proxy"))
    versions._set_buffer(holder, "running_mean", proxy)
    versions._set_buffer(holder, "momentum", 0.5)
    with pytest.raises(TypeError):
        versions._set_buffer(holder, "weight", proxy)
    assert holder._buffers["running_mean"] is proxy
    assert holder.momentum == 0.5


def test_what_makes_tensors_takes_a_proxy_for_a_device() -> None:
    proxy: Any = fx.Proxy(fx.Graph().placeholder("device"))
    ones = versions._asking(torch.ones)
    made = ones(2, device=proxy)
    assert made.node.target is torch.ones
    assert torch.equal(ones(2, device="cpu"), torch.ones(2))
    before = torch.ones
    with versions.devices_traced():
        assert isinstance(torch.ones(2, device=proxy), fx.Proxy)
    assert torch.ones is before


def test_attributes_set_in_an_export_are_taken_back() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    model[0].held = before = torch.ones(1)
    with versions.attributes_put_back(model):
        model[0].held = torch.zeros(1)
        model.eval()
    assert model[0].held is before
    assert not model.training
