"""What is known of a line's positions: the number that each holds everywhere. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from upscale.channels import Flags, Positions

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """The number at each position of a line, at every place and for every input; NaN if none.

    A `firm` number depends on no parameter's value, so it holds for other weights too.

    >>> zero = Known.zeros_at(np.array([1]), 3)
    >>> zero.zero.tolist(), zero.constant.tolist()
    ([False, True, False], [False, True, False])
    """

    numbers: Numbers
    firm: Flags

    @classmethod
    def nothing(cls, size: int) -> Known:
        """A line of which nothing is known."""
        return cls(np.full(size, np.nan), np.zeros(size, dtype=bool))

    @classmethod
    def zeros_at(cls, where: Positions, size: int) -> Known:
        """A line that is zero at some positions, whatever the parameters."""
        numbers, firm = np.full(size, np.nan), np.zeros(size, dtype=bool)
        numbers[where], firm[where] = 0.0, True
        return cls(numbers, firm)

    @property
    def constant(self) -> Flags:
        """Where a number is known."""
        return ~np.isnan(self.numbers)

    @property
    def zero(self) -> Flags:
        """Where zero is known, whatever the parameters."""
        zero: Flags = self.firm & (self.numbers == 0)
        return zero

    @property
    def firm_numbers(self) -> Numbers:
        """The numbers that hold whatever the parameters; NaN for all others."""
        return np.where(self.firm, self.numbers, np.nan)

    @property
    def zeros(self) -> Known:
        """What is known of the positions that are zero, for these parameters at least."""
        return self.only(self.numbers == 0)

    def only(self, where: Flags) -> Known:
        """What is known at some positions alone."""
        return Known(np.where(where, self.numbers, np.nan), self.firm & where)

    def at(self, positions: Positions) -> Known:
        """What is known at positions, in their order."""
        return Known(self.numbers[positions], self.firm[positions])

    def or_else(self, other: Known) -> Known:
        """What is known here, and where nothing is, there."""
        mine = self.constant
        return Known(
            np.where(mine, self.numbers, other.numbers), np.where(mine, self.firm, other.firm)
        )


def agreed(parts: Sequence[Known]) -> Known:
    """What all parts say alike."""
    first, *rest = parts
    same = first.constant
    firm = first.firm
    for part in rest:
        same = same & (part.numbers == first.numbers)
        firm = firm & part.firm
    return Known(first.numbers, firm).only(same)


def firmest(one: Known, other: Known) -> Known:
    """What either knows; the first where it is firm, else the second."""
    return one.only(one.firm).or_else(other).or_else(one)
