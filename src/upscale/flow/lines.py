"""Lines: the axes along which channels are told apart; and grids, where they lie along several.

No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from upscale.channels import Positions

GRID = -1


class Line(NamedTuple):
    """One axis of one value; or, with axis `GRID`, several axes that carry channels together."""

    value: str
    axis: int


@dataclass(frozen=True, slots=True)
class HeadGrid:
    """How a line is spread over several axes of its value: attention heads and their width.

    `axes` tells for each axis of the value which axis of the flat tensor it is, `None` for
    those the channels are spread over, whose sizes are `sizes`.
    """

    axes: tuple[int | None, ...]
    sizes: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """How many blocks must keep equally many channels for the grid to stay one."""
        return int(np.prod(self.sizes[:-1]))

    @property
    def spread(self) -> tuple[int, ...]:
        """The axes of the value that channels are spread over."""
        return tuple(axis for axis, flat in enumerate(self.axes) if flat is None)

    def left(self, positions: Positions) -> tuple[int, ...]:
        """The sizes of the axes for some positions alone: of blocks that are left, equally many.

        Of four heads of three channels two are left, with two channels each:

        >>> HeadGrid((0, None, None), (4, 3)).left(np.array([0, 2, 9, 10]))
        (2, 2)
        """
        sizes = list(self.sizes[:-1])
        if len(sizes) == 1:
            sizes[0] = len(np.unique(positions // self.sizes[-1]))
        return (*sizes, len(positions) // max(1, int(np.prod(sizes))))
