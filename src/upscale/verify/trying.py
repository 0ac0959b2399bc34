"""Finding inputs that tell something: the example, and others if it leaves layers in the dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.verify.drawing import DRAWS, drawn
from upscale.verify.responding import Answer, ask, without_gradients
from upscale.verify.running import Runner

Layers = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs to call models with, the layers that outputs respond to there, and whether what is
    computed from them makes sense."""

    name: str
    example: Example
    answered: frozenset[str] = frozenset()
    sensible: bool = True


def find_inputs(
    masked: nn.Module, example: Example, asked: Layers, precision: torch.dtype | None
) -> list[Inputs]:
    """The example, others drawn like it, and yet others as long as none responds to any layer."""
    generator = torch.Generator().manual_seed(0)
    with Runner(masked, precision) as runner:
        outputs, first = _tried(runner, "the example", example, asked)
        found, at_least = [first], finite_share(outputs)
        rest = {name: own for name, own in asked.items() if name not in first.answered}
        for draw in DRAWS:
            before = runner.buffers()
            try:
                outputs, own = _tried(runner, draw.name, drawn(example, draw, generator), rest)
            except Exception:  # a model need not take what nobody said it would
                runner.restore(before)
                continue
            # Zero times infinity is no number in the masked model alone, where it overflows.
            share = finite_share(outputs)
            own = (
                own
                if share and share >= at_least
                else Inputs(own.name, own.example, sensible=False)
            )
            found.append(own)
            if own.sensible and (own.answered or first.answered or not asked):
                break
    return found if len(found) > 1 else [first, Inputs("the example again", example)]


def finite_share(outputs: Sequence[Tensor]) -> float:
    """The share of finite numbers in what a model returned; none of nothing."""
    size = sum(output.numel() for output in outputs)
    return sum(int(output.isfinite().sum()) for output in outputs) / max(1, size)


def _tried(
    runner: Runner, name: str, example: Example, asked: Layers
) -> tuple[list[Tensor], Inputs]:
    answer = ask(runner, example, asked) if asked else Answer(without_gradients(runner, example))
    return answer.outputs, Inputs(name, example, frozenset(answer.layers))
