"""Inputs of verification's own: like the example, so that a model takes them, but others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upscale.capture import Example

SMALL_BATCH = 2


@dataclass(frozen=True, slots=True)
class Draw:
    """One way to draw inputs; floating numbers spread so many times as far as the example's."""

    name: str
    spread: float
    keep_sign: bool


# What is nearest to the example comes first: a model is most likely to take that, and to respond.
DRAWS = (
    Draw("inputs drawn like it", 1.0, True),
    Draw("inputs drawn around zero", 1.0, False),
    Draw("inputs drawn ten times as large", 10.0, False),
)


def drawn(example: Example, draw: Draw, generator: torch.Generator) -> Example:
    """Inputs of the example's shapes and kinds, drawn from a generator and nothing else.

    Whole numbers are among those that the example shows: they may be indices. Where a size is
    zero it becomes two, since nothing can be seen on nothing.
    """

    def change(tensor: Tensor) -> Tensor:
        like, size = tensor.detach(), [length or SMALL_BATCH for length in tensor.shape]
        if like.is_complex():
            parts = torch.view_as_real(like)
            return torch.view_as_complex(_floats(parts, [*size, 2], draw, generator))
        if like.is_floating_point():
            return _floats(like, size, draw, generator)
        return _shown(like, size, generator)

    return example.map(change)


def _floats(like: Tensor, size: list[int], draw: Draw, generator: torch.Generator) -> Tensor:
    shown = like.double().flatten()
    if not shown.isfinite().all() and draw.keep_sign:
        return like  # infinities are how masks are written
    shown = shown[shown.isfinite()]
    mean = shown.mean().item() if shown.numel() else 0.0
    spread = shown.std(correction=0).item() if shown.numel() else 0.0
    spread = spread or abs(mean) or 1.0
    fresh = torch.randn(size, generator=generator, dtype=torch.float64) * spread * draw.spread
    if draw.keep_sign:
        fresh = fresh + mean
        if shown.numel() and not (shown < 0).any():
            fresh = fresh.abs()
    if list(like.shape) == size:
        return torch.empty_like(like).copy_(fresh)  # lies in memory as the example does
    return fresh.to(like.device, like.dtype)


def _shown(like: Tensor, size: list[int], generator: torch.Generator) -> Tensor:
    shown = like.flatten()
    if not shown.numel():
        return like.new_zeros(size)
    if like.dtype == torch.bool:
        return shown[torch.randperm(shown.numel(), generator=generator)].reshape(size)
    return shown[torch.randint(0, shown.numel(), size, generator=generator)]
