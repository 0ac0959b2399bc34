"""Positions of channels, and their places in streams, as arrays. No torch."""

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
