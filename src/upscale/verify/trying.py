"""Finding inputs that tell something: the example, and others if it leaves layers in the dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.verify.drawing import DRAWS, drawn
from upscale.verify.responding import Layers, ask
from upscale.verify.running import Runner


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
    masked: nn.Module, example: Example, asked: Layers, precision: torch.dtype | None
) -> list[Inputs]:
    """The example, others drawn like it, and yet others as long as none responds to any layer.

    What is drawn is tried only if the example leaves layers in the dark; else it is spare.
    """
    generator = torch.Generator().manual_seed(0)
    again = Inputs("the example again", example, spare=True)
    with Runner(masked, precision) as runner:
        outputs, first = ask(runner, example, asked)
        found, at_least = [Inputs("the example", example, first)], finite_share(outputs)
        rest = {name: own for name, own in asked.items() if name not in first}
        for draw in DRAWS:
            fresh = drawn(example, draw, generator)
            if not rest:
                found.append(Inputs(draw.name, fresh, spare=True))
                continue
            before = runner.buffers()
            try:
                outputs, answered = ask(runner, fresh, rest)
            except Exception:  # a model need not take what nobody said it would
                runner.restore(before)
                continue
            sensible = makes_sense(outputs, at_least)
            found.append(Inputs(draw.name, fresh, answered if sensible else frozenset()))
            if sensible and (answered or first):
                break
    return [*found, again]


def makes_sense(outputs: Sequence[Tensor], at_least: float) -> bool:
    """Whether outputs are as finite as those on the example.

    Zero times infinity is no number in the masked model alone, where it overflows.
    """
    share = finite_share(outputs)
    return 0 < share >= at_least


def finite_share(outputs: Sequence[Tensor]) -> float:
    """The share of finite numbers in what a model returned; none of nothing."""
    size = sum(output.numel() for output in outputs)
    return sum(int(output.isfinite().sum()) for output in outputs) / max(1, size)
