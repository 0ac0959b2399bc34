"""What constant rules promise holds: the operation itself, run on constant channels, agrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from upscale.capture import Captured, Example, capture
from upscale.flow.analyse import analyse
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.known import Known
from upscale.flow.lines import GRID, Line
from upscale.lowering.constants import find_constants
from upscale.lowering.lowered import Masks
from upscale.ops.table import OPERATIONS

aten = torch.ops.aten
Made = Callable[["Constant", Tensor, Callable[..., Any]], Any]
CONSTANT = np.arange(4)  # of eight channels; each holds the number that its normalisation adds
OPTED_IN = sorted(name for name, operation in OPERATIONS.items() if operation.constants)


class Constant(nn.Module):
    """Channels of 4 × 4 places, the first four of them constant, and what is made of them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8)
        self.other = nn.Parameter(torch.linspace(0.5, 2, 8).reshape(8, 1, 1))
        self.each = nn.Parameter(torch.linspace(-1, 1, 8))
        self.filters1, self.filters2, self.filters3 = (
            nn.Parameter(torch.randn(8, 1, *[1] * axes)) for axes in (1, 2, 3)
        )
        self.register_buffer("scores", torch.rand(2, 2, 5, 16))
        self.register_buffer("places", torch.tensor([1, 0]))
        self._name = name

    def forward(self, x: Tensor) -> Any:
        return called(self._name, self, self.norm(self.conv(x)))


def called(name: str, m: Constant, y: Tensor) -> Any:
    """Call an operation by its name, with arguments that suit it; most take the tensor alone."""
    function, plain = getattr(aten, name), name.removesuffix("_")
    for names, made in CALLS.items():
        if plain in names.split():
            return made(m, y, function)
    if plain.endswith(("1d", "1d_with_indices")):
        y = y.flatten(2)
    elif plain.endswith(("3d", "3d_with_indices")):
        y = y.unsqueeze(2).repeat(1, 1, 4, 1, 1)
    for prefix, arguments in OVER_SPACE.items():
        if plain.startswith(prefix):
            sizes = y.ndim - 2
            return function(y, *([each] * sizes if each else False for each in arguments))
    return function(y)


# Operations over as many axes of space as their name says: what they take for each of them.
OVER_SPACE: dict[str, Sequence[int]] = {
    "max_pool": (2,),
    "avg_pool": (2,),
    "adaptive": (2,),
    "upsample_nearest": (8,),
    "_upsample_nearest": (8,),
    "upsample": (8, 0),
    "_upsample": (8, 0),
}
CALLS: dict[str, Made] = {
    "add sub mul div maximum minimum": lambda m, y, f: f(y, m.other),
    "addcmul addcdiv": lambda m, y, f: f(y, y.exp(), m.other),
    "clamp": lambda m, y, f: f(y, -0.3, 0.4),
    "clamp_max clamp_min rsub": lambda m, y, f: f(y, 0.3),
    "pow": lambda m, y, f: f(y, 2),
    "lerp": lambda m, y, f: f(y, m.other, 0.3),
    "prelu": lambda m, y, f: f(y, m.each),
    "dropout feature_dropout": lambda m, y, f: f(y, 0.5, False),
    "to": lambda m, y, f: f(y, torch.float32),
    "_to_copy": lambda m, y, f: f(y, dtype=torch.float32),
    "glu": lambda m, y, f: f(y, 1),
    "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle": lambda m, y, f: f(y, 2),
    "mean sum amax amin": lambda m, y, f: f(y, [2, 3]),
    "pad": lambda m, y, f: f(y, [1, 1]),
    "constant_pad_nd": lambda m, y, f: f(y, [1, 1], 0.5),
    "reflection_pad1d": lambda m, y, f: f(y.flatten(2), [1, 1]),
    "reflection_pad2d replication_pad2d": lambda m, y, f: f(y, [1, 1, 1, 1]),
    "conv1d": lambda m, y, f: f(y.flatten(2), m.filters1, m.each, groups=8),
    "conv2d": lambda m, y, f: f(y, m.filters2, m.each, padding=[1, 1], groups=8),
    "conv3d": lambda m, y, f: f(y.unsqueeze(2), m.filters3, groups=8),
    "batch_norm": lambda m, y, f: f(
        y, m.each, m.each, m.norm.running_mean, m.norm.running_var, False, 0.1, 1e-5, False
    ),
    "native_batch_norm": lambda m, y, f: f(
        y, m.each, m.each, m.norm.running_mean, m.norm.running_var, False, 0.1, 1e-5
    ),
    "_native_batch_norm_legit_no_training": lambda m, y, f: f(
        y, m.each, m.each, m.norm.running_mean, m.norm.running_var, 0.1, 1e-5
    ),
    "repeat_interleave": lambda m, y, f: f(y, 2, 1),
    "matmul bmm": lambda m, y, f: f(m.scores[:, 0], y.flatten(2).transpose(1, 2)),
    "einsum": lambda m, y, f: f("bhqk,bhkd->bhqd", [m.scores, _heads(y)]),
    "scaled_dot_product_attention": lambda m, y, f: f(_heads(y), _heads(y), _heads(y)),
    "reshape view _unsafe_view": lambda m, y, f: f.default(y, [2, 8, 16]),
    "expand": lambda m, y, f: f.default(y.mean([2, 3], keepdim=True), [2, 8, 4, 4]),
    "flatten": lambda m, y, f: f(y, 1),
    "unflatten": lambda m, y, f: f(y, 3, [2, 2]),
    "squeeze unsqueeze": lambda m, y, f: f(y, 2),
    "permute": lambda m, y, f: f(y, [0, 2, 3, 1]),
    "transpose swapaxes swapdims movedim": lambda m, y, f: f(y, 1, 2),
    "t": lambda m, y, f: f(y.mean([2, 3])),
    "repeat tile": lambda m, y, f: f(y, [1, 2, 1, 1]),
    "cat concat": lambda m, y, f: f([y, y], 1),
    "stack": lambda m, y, f: f([y, y], 1),
    "select": lambda m, y, f: f(y, 0, 1),
    "unbind": lambda m, y, f: f(y, 2),
    "index_select": lambda m, y, f: f(y, 3, m.places),
    "split chunk tensor_split": lambda m, y, f: f(y, 2, 1),
    "split_with_sizes": lambda m, y, f: f(y, [3, 5], 1),
    "slice narrow": lambda m, y, f: f(y, 1, 1, 4),
    "roll": lambda m, y, f: f(y, [1], [1]),
    "flip": lambda m, y, f: f(y, [1]),
}


def _heads(y: Tensor) -> Tensor:
    return y.flatten(2).reshape(2, 2, 4, 16).transpose(2, 3)


@cache
def traced(name: str) -> tuple[Constant, Captured, ChannelFlow]:
    torch.manual_seed(0)
    model = Constant(name).double().eval()
    with torch.no_grad():
        model.conv.weight[CONSTANT], model.conv.bias[CONSTANT] = 0, 0
    captured = capture(model, Example.of(torch.randn(2, 3, 4, 4, dtype=torch.float64)))
    return model, captured, analyse(captured)


def constants_of(name: str, numbers: Sequence[float]) -> dict[Line, Known]:
    """What is found behind channels that hold these numbers."""
    model, captured, flow = traced(name)
    with torch.no_grad():
        model.norm.bias[CONSTANT] = torch.tensor(numbers, dtype=torch.float64)
    zeroed = {f"conv.{parameter}": {0: tuple(CONSTANT)} for parameter in ("weight", "bias")}
    return find_constants(flow, model, captured, Masks(zeroed=zeroed), {})


def run(name: str) -> Mapping[str, Tensor]:
    """Every value that nodes make, on other images than the example."""
    model, captured, _ = traced(name)
    values: dict[str, Tensor] = {}

    class Keeping(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            names = tree_leaves(captured.observed[n.name].result, is_leaf=lambda x: x is None)
            # A copy: the next may write into it.
            kept = [
                leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(result)
            ]
            values.update(zip(names, kept, strict=False))
            return result

    x = torch.randn(2, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        Keeping(model, graph=captured.graph).run(x)
    return values


def rows(line: Line, value: Tensor, flow: ChannelFlow) -> Tensor:
    """All numbers at each position of a line."""
    spread = [line.axis]
    if line.axis == GRID:
        spread = [axis for axis, flat in enumerate(flow.grids[line].axes) if flat is None]
    value = value.movedim(spread, list(range(len(spread))))
    return value.reshape(int(np.prod(value.shape[: len(spread)])), -1)


@pytest.mark.parametrize("name", OPTED_IN)
@settings(max_examples=3)
@given(numbers=st.lists(st.sampled_from([0.0, 0.5, -0.75, 1.0, 3.5]), min_size=4, max_size=4))
def test_the_numbers_that_an_operation_makes_of_numbers_are_those_promised(
    name: str, numbers: list[float]
) -> None:
    flow, constants, values = traced(name)[2], constants_of(name, numbers), run(name)
    for line, known in constants.items():
        made = rows(line, values[line.value], flow)[known.constant].double()
        promised = torch.from_numpy(known.numbers[known.constant])[:, None].expand_as(made)
        torch.testing.assert_close(made, promised, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", OPTED_IN)
def test_an_operation_that_opted_in_makes_constants_of_some_numbers(name: str) -> None:
    _, captured, _ = traced(name)
    calls = [call for seen in captured.observed.values() for call in seen.calls]
    made = {value for call in calls if call.op == name for value in call.outs}
    assert any(
        line.value in made for number in (0.0, 0.5) for line in constants_of(name, [number] * 4)
    )
