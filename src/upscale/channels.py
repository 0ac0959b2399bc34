"""Index arithmetic on channel positions: runs, look-ups, permutations. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The stream and the place in it of every class of channels; -1 where neither is free."""

    stream: Positions
    place: Positions

    @classmethod
    def none(cls, count: int) -> Places:
        """Places for so many classes, none of them free."""
        return cls(np.full(count, -1, dtype=np.int64), np.full(count, -1, dtype=np.int64))


def positions(indices: Sequence[int] | range) -> Positions:
    """The given indices as an array of positions."""
    return np.fromiter(indices, dtype=np.int64, count=len(indices))


def runs(indices: Positions) -> list[tuple[int, int]]:
    """Maximal stretches of consecutive ascending indices, as (start, length).

    >>> runs(positions([4, 5, 6, 1, 2]))
    [(4, 3), (1, 2)]
    """
    if len(indices) == 0:
        return []
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    starts = np.concatenate(([0], breaks))
    ends = np.concatenate((breaks, [len(indices)]))
    return [(int(indices[a]), int(b - a)) for a, b in zip(starts, ends, strict=True)]


def is_slice(indices: Positions) -> bool:
    """Whether the indices are consecutive and ascending, so that a view serves them.

    >>> is_slice(positions([3, 4, 5])), is_slice(positions([3, 5]))
    (True, False)
    """
    return len(indices) <= 1 or bool((np.diff(indices) == 1).all())


def places(layout: Positions, size: int) -> Positions:
    """Where each position stands in a layout; -1 for those that are not in it.

    >>> places(positions([2, 0]), 3).tolist()
    [1, -1, 0]
    """
    where = np.full(size, -1, dtype=np.int64)
    where[layout] = np.arange(len(layout))
    return where


def occurrences(classes: Positions) -> Positions:
    """For each position, how many earlier positions carry the same class.

    >>> occurrences(positions([7, 8, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(classes, kind="stable")
    ranked = classes[order]
    starts = np.concatenate(([True], ranked[1:] != ranked[:-1])) if len(ranked) else ranked > 0
    first = np.maximum.accumulate(np.where(starts, np.arange(len(ranked)), 0))
    counts = np.empty(len(classes), dtype=np.int64)
    counts[order] = np.arange(len(ranked)) - first
    return counts
