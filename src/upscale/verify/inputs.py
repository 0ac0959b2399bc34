"""Inputs that tell something: the example, and others like it if that leaves layers in the dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.verify.responding import Layers, ask
from upscale.verify.running import Precision, Runner

SMALL_BATCH = 2


# Ways to draw inputs: how many times as far floating numbers spread as the example's do, and
# whether around their mean and with their sign. What is nearest to the example comes first: a
# model is most likely to take that, and to respond.
DRAWS = {
    "inputs drawn like it": (1.0, True),
    "inputs drawn around zero": (1.0, False),
    "inputs drawn ten times as large": (10.0, False),
}
Way = tuple[float, bool]


def drawn(example: Example, way: Way, generator: torch.Generator) -> Example:
    """Inputs of the example's shapes and kinds, drawn from a generator and nothing else.

    Whole numbers are among those that the example shows: they may be indices. Where a size is
    zero it becomes two, since nothing can be seen on nothing.
    """

    def change(tensor: Tensor) -> Tensor:
        like, size = tensor.detach(), [length or SMALL_BATCH for length in tensor.shape]
        if like.is_complex():
            parts = torch.view_as_real(like)
            return torch.view_as_complex(_floats(parts, [*size, 2], way, generator))
        if like.is_floating_point():
            return _floats(like, size, way, generator)
        return _shown(like, size, generator)

    return example.map(change)


def _floats(like: Tensor, size: list[int], way: Way, generator: torch.Generator) -> Tensor:
    times, keep_sign = way
    shown = like.double().flatten()
    if not shown.isfinite().all() and keep_sign:
        return like  # infinities are how masks are written
    shown = shown[shown.isfinite()]
    mean = shown.mean().item() if shown.numel() else 0.0
    spread = shown.std(correction=0).item() if shown.numel() else 0.0
    spread = spread or abs(mean) or 1.0
    fresh = torch.randn(size, generator=generator, dtype=torch.float64) * spread * times
    if keep_sign:
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


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs to call models with, and the layers that outputs respond to there.

    Spare ones were never tried: they are for when those before them told nothing.
    """

    name: str
    example: Example
    answered: frozenset[str] = frozenset()
    spare: bool = False


def find_inputs(
    masked: nn.Module, example: Example, asked: Layers, precision: Precision
) -> list[Inputs]:
    """The example, others drawn like it, and yet others as long as none responds to any layer.

    What is drawn is tried only if the example leaves layers in the dark; else it is spare.
    """
    generator = torch.Generator().manual_seed(0)

    with Runner(masked, precision) as runner:
        outputs, first = ask(runner, example, asked)
        found, at_least = [Inputs("the example", example, first)], finite_share(outputs)
        rest = {name: own for name, own in asked.items() if name not in first}
        for name, way in DRAWS.items():
            fresh = drawn(example, way, generator)
            if not rest:
                found.append(Inputs(name, fresh, spare=True))
                continue
            before = runner.buffers()
            try:
                outputs, answered = ask(runner, fresh, rest)
            except Exception:  # a model need not take what nobody said it would
                runner.restore(before)
                continue
            sensible = makes_sense(outputs, at_least)
            found.append(Inputs(name, fresh, answered if sensible else frozenset()))
            if sensible and (answered or first):
                break
    return [*found, Inputs("the example again", example, spare=True)]


def makes_sense(outputs: Sequence[Tensor], at_least: float) -> bool:
    """Whether outputs are as finite as those on the example.

    Zero times infinity is no number in the masked model alone, where it overflows.
    """
    return 0 < finite_share(outputs) >= at_least


def finite_share(outputs: Sequence[Tensor]) -> float:
    """The share of finite numbers in what a model returned; none of nothing."""
    size = sum(output.numel() for output in outputs)
    return sum(int(output.isfinite().sum()) for output in outputs) / max(1, size)
