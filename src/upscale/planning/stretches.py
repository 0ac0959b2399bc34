"""Arithmetic on positions: stretches that lie side by side, and where things stand. No torch."""

from __future__ import annotations

import numpy as np

from upscale.channels import Positions


def runs(indices: Positions) -> list[tuple[int, int]]:
    """Maximal stretches of consecutive ascending indices, as (start, length).

    >>> runs(np.array([4, 5, 6, 1, 2]))
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

    >>> is_slice(np.array([3, 4, 5])), is_slice(np.array([3, 5]))
    (True, False)
    """
    return len(indices) <= 1 or bool((np.diff(indices) == 1).all())


def places(layout: Positions, size: int) -> Positions:
    """Where each position stands in a layout; -1 for those that are not in it.

    >>> places(np.array([2, 0]), 3).tolist()
    [1, -1, 0]
    """
    where = np.full(size, -1, dtype=np.int64)
    where[layout] = np.arange(len(layout))
    return where


def occurrences(classes: Positions) -> Positions:
    """For each position, how many earlier positions carry the same class.

    >>> occurrences(np.array([7, 8, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(classes, kind="stable")
    ranked = classes[order]
    starts = np.concatenate(([True], ranked[1:] != ranked[:-1])) if len(ranked) else ranked > 0
    first = np.maximum.accumulate(np.where(starts, np.arange(len(ranked)), 0))
    counts = np.empty(len(classes), dtype=np.int64)
    counts[order] = np.arange(len(ranked)) - first
    return counts
