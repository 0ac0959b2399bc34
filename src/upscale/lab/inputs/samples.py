"""Samples: what can be drawn from, and batches of what was drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

# Of few samples so many stay for the test: what was fitted to them would answer too well.
TESTED = 0.2


class Samples(Protocol):
    """Inputs that can be had by number; some may turn out to be unreadable."""

    def __len__(self) -> int:
        """How many there are."""

    def take(self, numbers: Sequence[int]) -> tuple[Any, list[int]]:
        """A batch of some, and the numbers of those that are in it."""

    def classes(self, outputs: int) -> Sequence[int] | None:
        """The class of each, if that is known and fits a model of so many outputs."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Some samples in batches, read anew at every turn: memory holds one batch at a time.

    With classes, a batch is a pair of inputs and classes.
    """

    samples: Samples
    numbers: tuple[int, ...]
    size: int
    classes: Sequence[int] | None = None

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self.numbers), self.size):
            batch, taken = self.samples.take(self.numbers[first : first + self.size])
            if not taken:
                continue
            if self.classes is None:
                yield batch
            else:
                yield batch, torch.tensor([self.classes[number] for number in taken])


def draw(
    count: int, fitted: int, tested: int, seed: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The numbers of samples to fit to, and of others to test on, drawn from so many.

    >>> [[len(part) for part in draw(count, 256, 256, seed=0)] for count in (1000, 100)]
    [[256, 256], [80, 20]]
    """
    order: Tensor = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    others = min(tested, int(count * TESTED))
    first = min(fitted, count - others)
    numbers = order.tolist()
    return tuple(numbers[:first]), tuple(numbers[first : first + tested])
