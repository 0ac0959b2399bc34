"""Functions behind `torch.fx.wrap`: looked into where that is faithful, left alone where not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials import nets
from trials.comparing import relative_error
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS, ComputedBias, FusedAttention, WrappedSplit, WrappedWindows, image
from upscale.capture import Example, capture
from upscale.verify import TOLERANCE

FUSED = [name for name, (make, _) in NETS.items() if issubclass(make, FusedAttention)]


def targets(model: nn.Module, example: Tensor) -> set[Any]:
    return {node.target for node in capture(model, Example.of(example)).graph.nodes}


def exported(model: nn.Module, example: Tensor, **kept: list[int]) -> nn.Module:
    selection = upscale.Selection(kept=kept)
    return upscale.export(model, upscale.plan(model, example, selection))


def error(model: nn.Module, example: Tensor, *others: Tensor) -> float:
    """The largest relative error of an export made with one example, on others."""
    selection = random_selection(model, 0.5, seed=1, empty=False)
    pruned = upscale.export(model, upscale.plan(model, example, selection))
    masked = upscale.mask(model, selection)
    return max(relative_error(pruned, masked, x) for x in others)


def calls(function: Callable[..., Tensor], *, weighted: bool) -> nn.Module:
    """A network that calls a function between two convolutions, with or without weights."""

    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.m, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1), nn.Conv2d(6, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            weights = (self.m.weight,) if weighted else ()
            return self.b(globals()[function.__name__](self.a(x), *weights))

    torch.manual_seed(0)
    return calm(Calls())


@torch.fx.wrap
def by_value(x: Tensor, weight: Tensor) -> Tensor:
    y = F.conv2d(x, weight).chunk(2, 1)
    return torch.cat(y if x.sum() > 0 else y[::-1], 1)


@torch.fx.wrap
def by_size(x: Tensor) -> Tensor:
    one, other = x.chunk(2, 1)
    return torch.cat((one, other) if x.size(2) > 12 else (other, one), 1)


@torch.fx.wrap
def by_kind(x: Tensor, weight: Tensor) -> Tensor:
    y = F.conv2d(x, weight)
    return y.flip(1).relu() if isinstance(x, Tensor) else y.relu()


@torch.fx.wrap
def by_dtype(x: Tensor, weight: Tensor) -> Tensor:
    y = F.conv2d(x, weight)
    return y.flip(1).relu() if x.dtype == torch.float64 else y.relu()


@torch.fx.wrap
def by_height(x: Tensor) -> Tensor:
    return x.flip(1) if x.size(2) > 12 else x.relu()


@torch.fx.wrap
def into_its_input(x: Tensor, weight: Tensor) -> Tensor:
    x[:, 1:3] = 1
    return F.conv2d(x, weight).relu()


@torch.fx.wrap
def through_an_old_view(x: Tensor, weight: Tensor) -> Tensor:
    y = F.conv2d(x, weight)
    view = y.flatten(2)
    y[:, 0] = 2
    return y + view.unflatten(2, y.shape[2:])


@torch.fx.wrap
def at_one_height(x: Tensor, weight: Tensor) -> Tensor:
    y = F.conv2d(x, weight)
    return y + sum(y[:, :, row : row + 1] for row in range(y.shape[2]))


@pytest.mark.parametrize("name", FUSED)
def test_value_channels_of_a_fused_projection_leave_alone(name: str) -> None:
    make, example = NETS[name]
    pruned = exported(make().eval(), example(1, 5), proj=[0, 4, 8])
    assert pruned.qkv.weight.shape == (24 + 3, 12)


def test_value_channels_leave_a_wrapped_attention() -> None:
    model = WrappedWindows().eval()
    pruned = exported(model, image(1, 12), proj=[0, 5, 6], reduce=[1, 2])
    # Two heads keep two channels each: what one needs, the other keeps too.
    assert dict(pruned.named_parameters())["qkv.weight"].shape == (16 + 4, 8)
    assert dict(pruned.named_parameters())["proj.weight"].shape == (8, 4)


def test_rows_with_a_computed_bias_leave() -> None:
    pruned = exported(ComputedBias().eval(), image(1, 12), head=[1, 4], dense=[3], c=[5, 6])
    held = {name: tuple(tensor.shape) for name, tensor in pruned.named_parameters()}
    assert held["dense.weight"] == (2, 1)
    assert held["b.weight"] == (3, 8, 3, 3)
    assert held["first"] == (4,)


def test_functions_are_written_out() -> None:
    for make in (WrappedWindows, WrappedSplit):
        found = targets(make().eval(), image(1, 12))
        assert not any(getattr(t, "__module__", "").startswith(("tests", "trials")) for t in found)


@pytest.mark.parametrize("size", [6, 9, 12, 14, 17])
def test_an_opened_function_takes_every_size_that_decides_alike(size: int) -> None:
    model = calm(WrappedWindows())
    assert error(model, image(1, 12), image(1, size), image(3, size)) <= TOLERANCE


@pytest.mark.parametrize(("size", "other"), [(12, 4), (3, 12)])
def test_an_opened_function_refuses_a_size_that_decides_otherwise(size: int, other: int) -> None:
    model = calm(WrappedWindows())
    pruned = exported(model, image(1, size), proj=[1, 2])
    with pytest.raises(AssertionError, match=r"windowed \(nets.py:\d+\).*export it again"):
        pruned(image(1, other))
    assert error(model, image(1, other), image(2, other)) <= TOLERANCE


@pytest.mark.parametrize("sign", [1, -1])
def test_a_function_that_decides_on_values_stays_closed(sign: int) -> None:
    model = calls(by_value, weighted=True)
    assert by_value in targets(model, image(1, 12))
    assert error(model, image(1, 12), sign * 9 * image(1, 12).abs()) <= TOLERANCE


@pytest.mark.parametrize("function", [by_size, by_height], ids=lambda f: f.__name__)
def test_a_function_without_weights_is_not_opened_at_the_price_of_sizes(function: Any) -> None:
    model = calls(function, weighted=False)
    assert function in targets(model, image(1, 12))
    assert error(model, image(1, 12), image(1, 12), image(2, 16)) <= TOLERANCE


@pytest.mark.parametrize(
    "function", [by_kind, by_dtype, into_its_input, through_an_old_view], ids=lambda f: f.__name__
)
def test_a_function_that_a_trace_would_change_stays_closed(function: Any) -> None:
    model = calls(function, weighted=True)
    assert function in targets(model, image(1, 12))
    assert error(model, image(1, 12), image(2, 12), image(1, 16)) <= TOLERANCE


def test_a_size_that_python_needs_as_a_number_is_held_to() -> None:
    model = calls(at_one_height, weighted=True)
    assert at_one_height not in targets(model, image(1, 12))
    assert error(model, image(1, 12), image(3, 12), torch.randn(1, 3, 12, 20)) <= TOLERANCE
    with pytest.raises(upscale.SizeError, match="at_one_height"):
        exported(model, image(1, 12))(image(1, 16))


def test_opening_touches_neither_the_model_nor_the_random_state() -> None:
    model = WrappedWindows().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    state, example = torch.get_rng_state(), torch.ones(1, 3, 12, 12)
    capture(model, Example.of(example))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert torch.equal(example, torch.ones(1, 3, 12, 12))


def test_the_report_points_into_an_opened_function() -> None:
    model = WrappedWindows().eval()
    plan = upscale.plan(model, image(1, 12), upscale.Selection(kept={}))
    (line,) = {frozen.source for frozen in plan.frozen}
    text = Path(nets.__file__).read_text().splitlines()
    assert "F.normalize(q, dim=-1)" in text[int(line.removeprefix("nets.py:")) - 1]


# `torch.jit` says of itself that it is deprecated; people deploy with it all the same.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated")
# It says so of every `fx.GraphModule`, whose own constructor annotates an attribute.
@pytest.mark.filterwarnings("ignore:The TorchScript type system doesn't support:UserWarning")
def test_an_export_with_an_opened_function_scripts_and_exports() -> None:
    pruned = exported(calm(WrappedWindows()), image(1, 12), proj=[0, 1, 6])
    x = image(2, 12)
    expected = pruned(x)
    assert torch.allclose(torch.jit.script(pruned)(x), expected, atol=1e-6)
    assert torch.allclose(torch.export.export(pruned, (x,)).module()(x), expected, atol=1e-6)
