"""Positions of channels, the classes that tie them, and their places in streams, as arrays.

No torch.
"""

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


class Classes:
    """Classes of positions under merging: a union-find that works on whole lines at once.

    >>> classes = Classes()
    >>> a, b = classes.fresh(2), classes.fresh(2)
    >>> classes.merge(a, b)
    >>> classes.find(b).tolist()
    [0, 1]
    """

    def __init__(self) -> None:
        self._parent = np.arange(1024)
        self._count = 0

    def fresh(self, size: int) -> Positions:
        """Classes nobody has yet, one for each of `size` positions."""
        start, self._count = self._count, self._count + size
        while self._count > len(self._parent):
            self._parent = np.concatenate(
                (self._parent, np.arange(len(self._parent), 2 * len(self._parent)))
            )
        return np.arange(start, self._count)

    def find(self, classes: Positions) -> Positions:
        """The representative of each class: its smallest member."""
        roots = self._parent[classes]
        while (higher := self._parent[roots]) is not None and (higher != roots).any():
            roots = higher
        self._parent[classes] = roots
        return roots

    def merge(self, one: Positions, other: Positions) -> None:
        """Make positions that meet members of one class."""
        a, b = self.find(one), self.find(other)
        low, high = np.minimum(a, b)[a != b], np.maximum(a, b)[a != b]
        while len(high):
            # Where several pairs give one class a parent, the last wins; the rest go again.
            self._parent[high] = low
            again = self._parent[high] != low
            a, b = self.find(low[again]), self.find(high[again])
            low, high = np.minimum(a, b)[a != b], np.maximum(a, b)[a != b]


def positions(indices: Sequence[int] | range) -> Positions:
    """The given indices as an array of positions."""
    return np.fromiter(indices, dtype=np.int64, count=len(indices))
