"""The memory of shapes: an operation is worked out once, and gives what it would if run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from upscale.capture.captured import place_of
from upscale.capture.observe import Kernels

aten = torch.ops.aten


def shape(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


class Ran(TorchDispatchMode):
    """Counts the operations that really run."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is not aten.empty_strided.default
        return func(*args, **(kwargs or {}))


def laid_out(made: Any) -> list[tuple[Any, ...]]:
    tensors = [made] if isinstance(made, Tensor) else made
    return [(x.shape, x.stride(), x.storage_offset(), x.dtype, x.device) for x in tensors]


def image() -> Tensor:
    return shape(2, 4, 6, 6)


CALLS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "a convolution": lambda: (aten.conv2d.default, (image(), shape(8, 4, 3, 3))),
    "an addition": lambda: (aten.add.Tensor, (image(), shape(4, 1, 1))),
    "a pair": lambda: (aten.max.dim, (image(), 1)),
    "a write": lambda: (aten.relu_.default, (image(),)),
    "channels last": lambda: (
        aten.relu.default,
        (image().contiguous(memory_format=torch.channels_last),),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operation_runs_once_and_gives_the_same_again(name: str) -> None:
    kernels = Kernels()
    (overload, first), (_, second), (_, third) = (CALLS[name]() for _ in range(3))
    with Ran() as ran:
        made = [kernels.perform(overload, args, {}) for args in (first, second)]
    assert ran.count == 1
    assert laid_out(made[0]) == laid_out(made[1]) == laid_out(overload(*third))


@pytest.mark.parametrize(
    ("overload", "rest"), [(aten.dropout.default, (0.5, False)), (aten.relu_.default, ())]
)
def test_what_hands_back_its_input_hands_back_each_its_own(overload: Any, rest: Any) -> None:
    kernels = Kernels()
    for x in (image(), image(), image()):
        assert kernels.perform(overload, (x, *rest), {}) is x


def test_dropout_that_drops_gives_another_tensor_although_it_handed_one_back_before() -> None:
    kernels, x = Kernels(), image()
    assert kernels.perform(aten.dropout.default, (x, 0.5, False), {}) is x
    dropped = kernels.perform(aten.dropout.default, (x, 0.5, True), {})
    assert place_of(dropped) != place_of(x)


@pytest.mark.parametrize("order", [(1, 1.0), (1.0, 1)])
def test_a_whole_number_is_not_taken_for_the_fraction_it_equals(order: tuple[Any, Any]) -> None:
    kernels = Kernels()
    kinds = {int: torch.int64, float: torch.float32}
    for literal in order * 2:
        x = shape(3, dtype=torch.int64)
        made = kernels.perform(aten.add.Scalar, (x, literal), {})
        assert made.dtype == kinds[type(literal)]


def test_true_is_not_taken_for_one() -> None:
    kernels, x = Kernels(), shape(2, 3, 4)
    for keeps in (1, True, 0, False):
        made = kernels.perform(aten.sum.dim_IntList, (x, [1], bool(keeps)), {})
        assert made.ndim == (3 if keeps else 2)
    flags = shape(3, dtype=torch.bool)
    assert kernels.perform(aten.add.Scalar, (flags, 1), {}).dtype == torch.int64
    assert kernels.perform(aten.add.Scalar, (flags, True), {}).dtype == torch.bool


def test_views_lie_in_the_memory_of_what_they_are_of() -> None:
    kernels = Kernels()
    for x in (image(), image()):
        one, other = kernels.perform(aten.chunk.default, (x, 2, 1), {})
        assert place_of(one) == place_of(other) == place_of(x)
        assert other.storage_offset() == 2 * 36


def test_what_is_laid_out_anew_in_place_is_each_time() -> None:
    kernels = Kernels()
    for x in (shape(2, 3), shape(2, 3)):
        made = kernels.perform(aten.unsqueeze_.default, (x, 0), {})
        assert made is x
        assert x.shape == (1, 2, 3)


def test_numbers_are_never_remembered() -> None:
    kernels = Kernels()
    for number in (1.0, 2.0):
        x = torch.full((2,), number)
        assert kernels.perform(aten.relu.default, (x,), {}).tolist() == [number, number]
