"""Where a model rounds by itself, verification follows it, and still sees a swapped channel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from tests.verify.test_evidence import compared, made, pair, spoil
from upscale.capture import Example
from upscale.verify import compare


class Deep(nn.Module):
    """Three layers; `given` and `scores` say what comes before and after them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(12, 32), nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        h = self.first(self.given(x)).relu()
        return self.scores(self.last(self.between(self.middle(h)).relu()))

    def given(self, x: Tensor) -> Tensor:
        return x

    def between(self, h: Tensor) -> Tensor:
        return h

    def scores(self, h: Tensor) -> Any:
        return h


class Bytes(Deep):
    def given(self, x: Tensor) -> Tensor:
        return x.float() / 255 - 0.3


class FloatSoftmax(Deep):
    def scores(self, h: Tensor) -> Tensor:
        return F.softmax(h.float(), 1).to(h.dtype)


class HalfBetween(Deep):
    def between(self, h: Tensor) -> Tensor:
        return h.half().float()


class FixedTable(Deep):
    """A table in a fixed dtype, and a product that takes no other."""

    def between(self, h: Tensor) -> Tensor:
        return h @ torch.eye(32, dtype=torch.float32).flip(0)


class WrittenInto(Deep):
    def between(self, h: Tensor) -> Tensor:
        room = torch.zeros(h.shape, dtype=torch.float32)
        room.copy_(h)
        return room.to(h.dtype)


class Normed(Deep):
    """As language models do: the norm is computed in float32, whatever comes."""

    def between(self, h: Tensor) -> Tensor:
        wide = h.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(h.dtype)


class Turned(Deep):
    """Complex numbers in between."""

    def between(self, h: Tensor) -> Tensor:
        pairs = torch.view_as_complex(h.reshape(-1, 16, 2))
        return torch.view_as_real(pairs * 1j).flatten(1)


class Waves(Deep):
    def scores(self, h: Tensor) -> Tensor:
        return torch.fft.rfft(h, dim=1)


class Mixed(Deep):
    def between(self, h: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (h @ h.T @ h).to(h.dtype) / 32


KEPT = {"middle": list(range(0, 32, 2)), "last": list(range(20))}


def inputs(kind: type[nn.Module]) -> Tensor:
    drawn = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    return (drawn.abs() * 100).clamp(0, 255).byte() if kind is Bytes else drawn


@pytest.mark.parametrize(
    ("kind", "precision"),
    [
        (Deep, "float64"),
        (Turned, "float64"),
        (Waves, "float64"),
        (Bytes, "its own precision, float32"),
        (FloatSoftmax, "its own precision, float32"),
        (FixedTable, "its own precision, float32"),
        (WrittenInto, "its own precision, float32"),
        (Normed, "its own precision, float32"),
        (HalfBetween, "its own precision, float16"),
    ],
)
def test_a_model_is_verified_in_the_widest_precision_it_keeps_to_and_errors_are_seen_there(
    kind: type[nn.Module], precision: str
) -> None:
    x = inputs(kind)
    exported, masked = pair(made(kind), x, KEPT)
    found = compare(exported, masked, Example.of(x))
    assert found.exact, found
    assert found.precision == precision
    assert found.tolerance <= 1e-2
    spoil(exported)
    wrong = compare(exported, masked, Example.of(x))
    assert wrong.relative_error is not None
    assert not wrong.exact, wrong


def test_a_region_of_autocast_is_verified() -> None:
    assert compared(made(Mixed), inputs(Mixed), kept=KEPT).exact


@pytest.mark.parametrize("kind", [Deep, Normed])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_few_bits_is_verified_with_more(
    kind: type[nn.Module], dtype: torch.dtype
) -> None:
    model, x = made(kind).to(dtype), inputs(kind).to(dtype)
    exported, masked = pair(model, x, KEPT)
    found = compare(exported, masked, Example.of(x))
    assert found.exact, found
    assert found.precision == ("float64" if kind is Deep else "float32")
    spoil(exported)
    assert not compare(exported, masked, Example.of(x)).exact


@pytest.mark.parametrize("kind", [FloatSoftmax, HalfBetween, Bytes])
def test_every_swap_of_two_channels_is_seen_where_a_model_rounds(kind: type[nn.Module]) -> None:
    x = inputs(kind)
    exported, masked = pair(made(kind), x, KEPT)
    weight = exported.get_submodule("last").weight
    right = weight.detach().clone()
    for other in range(1, weight.shape[1]):
        with torch.no_grad():
            weight.copy_(right)
            weight[:, [0, other]] = right[:, [other, 0]]
        found = compare(exported, masked, Example.of(x))
        dead = (right[:, 0] == right[:, other]).all()
        assert not found.exact or dead, (other, found)


def test_a_casting_model_prunes_in_one_call() -> None:
    for kind in (Bytes, FloatSoftmax, HalfBetween):
        pruned = upscale.prune(made(kind), inputs(kind), amount=0.5)
        assert pruned.meta["verified"].exact


class Tied(Deep):
    """Two classes score the same but for rounding: which is first is chance."""

    def scores(self, h: Tensor) -> Any:
        return h, torch.stack((h.sum(1), h.flip(1).sum(1))).argmax(0)


def test_whole_numbers_that_rounding_decides_are_no_difference_and_others_are() -> None:
    model, x = made(Tied), torch.randn(64, 12, generator=torch.Generator().manual_seed(1))
    exported, masked = pair(model, x, KEPT)
    assert compare(exported, masked, Example.of(x)).exact

    class Other(nn.Module):
        def __init__(self, right: nn.Module) -> None:
            super().__init__()
            self.right = right

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            scores, first = self.right(x)
            return scores, first + 1

    assert not compare(Other(masked), masked, Example.of(x)).exact


def test_an_output_that_is_nothing_but_rounding_is_not_tested() -> None:
    class Centred(Deep):
        def scores(self, h: Tensor) -> Tensor:
            return (h - h.mean(1, keepdim=True)).mean(1)

    class Backwards(Centred):
        """The same sum, rounded otherwise."""

        def scores(self, h: Tensor) -> Tensor:
            return super().scores(h.flip(1))

    found = compare(made(Backwards), made(Centred), Example.of(inputs(Centred)))
    assert found.relative_error is None
    assert found.because is not None
    assert "rounding alone moves" in found.because or "no output responds" in found.because
