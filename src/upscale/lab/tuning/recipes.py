"""Recipes, and what an epoch of one comes to."""

from __future__ import annotations

import math
from dataclasses import dataclass

from upscale.errors import UpscaleError


class TuningError(UpscaleError):
    """Fine-tuning cannot start, or cannot go on from where it was."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train: SGD with momentum, its rate falling along half a cosine to nothing.

    `batch` is that of all processes together.
    """

    epochs: int = 1
    rate: float = 0.01
    batch: int = 128
    momentum: float = 0.9
    decay: float = 5e-4
    seed: int = 0

    def rate_at(self, done: float) -> float:
        """The rate when this share of all steps is done.

        >>> Recipe(rate=0.1).rate_at(0.5)
        0.05
        """
        return round(self.rate * (1 + math.cos(math.pi * done)) / 2, 12)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch came to: the mean loss while it was trained, top-1 in percent after it.

    Top-1 is of test data with labels; without, it is how often the teacher is agreed with, and
    `None` where outputs are no classes. `apart` is how far outputs are from the teacher's on test
    data: the mean square of the difference, as a share of their own.
    """

    number: int
    loss: float
    top1_percent: float | None
    seconds: float
    apart: float | None = None
