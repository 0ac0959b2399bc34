"""Parts of a tensor without channels, and models without layers, are no reason to fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.exactly import exported_exactly
from trials.lively import calm
from trials.masks import random_selection

WIDTH, HEADS = 8, 2


class Rotary(nn.Module):
    """Attention that turns the first features of every head and hands on the rest, if any."""

    def __init__(self, turned: int) -> None:
        super().__init__()
        self.turned = turned
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.inner, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def turn(self, x: Tensor) -> Tensor:
        turned, rest = x[..., : self.turned], x[..., self.turned :]
        half = self.turned // 2
        around = torch.cat([-turned[..., half:], turned[..., :half]], -1)
        return torch.cat([turned * 0.8 + around * 0.6, rest], -1)

    def forward(self, x: Tensor) -> Tensor:
        heads = [p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in self.parts]
        query, key, value = self.turn(heads[0]), self.turn(heads[1]), heads[2]
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        made: Tensor = self.out(self.inner(seen.transpose(1, 2).flatten(-2)))
        return made


def words(batch: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(batch, size // 2, WIDTH, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("turned", [0, 2, WIDTH // HEADS])
def test_a_rotary_embedding_may_turn_all_of_a_head_or_nothing(turned: int, side: str) -> None:
    torch.manual_seed(0)
    model = calm(Rotary(turned)).double()
    for seed in range(3):
        exported_exactly(model, random_selection(model, 0.4, seed, side=side), words)


def sliced(x: Tensor) -> Tensor:
    return torch.cat([x[:, WIDTH:], x, x[:, :0]], 1)


def halved(x: Tensor) -> Tensor:
    nothing, everything = x.split([0, WIDTH], 1)
    return torch.cat([everything.relu(), nothing.sigmoid()], 1)


def narrowed(x: Tensor) -> Tensor:
    nothing = x.narrow(1, 3, 0)
    return torch.cat([x, nothing], 1) + nothing.sum() + nothing.size(0) + nothing.size(1)


def in_heads(x: Tensor) -> Tensor:
    grid = x.unflatten(1, (HEADS, -1))
    nothing = torch.cat([grid[:, :, WIDTH:], grid[:, :, :0].tanh()], 2)
    nobody = grid[:, HEADS:].exp()
    return x + nothing.sum() + nobody.sum() + nothing.shape[2]


class Around(nn.Module):
    """Two convolutions, and a function that takes nothing of what lies between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.between = between
        self.first, self.second = nn.Conv2d(3, WIDTH, 3), nn.Conv2d(WIDTH, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.between(self.first(x)))
        return made


@pytest.mark.parametrize("between", [sliced, halved, narrowed, in_heads])
def test_parts_without_channels_export_exactly(between: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = calm(Around(between)).double()
    for seed in range(4):
        for side in ("input", "output"):
            exported_exactly(model, random_selection(model, 0.4, seed, side=side))


def test_a_part_without_channels_keeps_nothing_whole() -> None:
    model = calm(Around(sliced)).double()
    exported, plan = exported_exactly(model, upscale.Selection(kept={"second": [1, 4]}))
    assert not plan.frozen
    assert exported.get_submodule("first").weight.shape[0] == 2


class Doubling(nn.Module):
    """A model without layers."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("make", [Doubling, nn.Sequential, lambda: nn.BatchNorm2d(3).eval()])
def test_a_survey_of_a_model_without_layers_says_so(make: Callable[[], nn.Module]) -> None:
    survey = upscale.survey(make(), torch.randn(1, 3, 4, 4))
    assert survey.layers == ()
    assert survey.prunable == 0
    assert survey.expected == {}
    assert "no convolution or linear" in str(survey)
