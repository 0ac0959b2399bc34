"""Fetching: the pieces in which wanted channels are read from where they lie, and their price.

Say a tensor holds channels in the order 4 1 0 5 and a reader wants 1, 0 and 4: they stand at the
places 1, 2 and 0, so it reads the two runs (1, 2) and (0), or gathers, whichever is cheaper there.
"""

from __future__ import annotations

import numpy as np

from upscale.channels import Positions
from upscale.flow.relations import GRID, HeadGrid, Line
from upscale.planning.edges import Edge, Piece, SizesRead, Spread
from upscale.planning.laying import Draft, Join, Laid
from upscale.planning.stretches import runs
from upscale.targets.prices import MOST_ZEROS
from upscale.targets.target import Fetched, FetchWork, Pricing, Work


class Fetching:
    """Makes edges, and adds to `work` what they have to fetch."""

    def __init__(self, draft: Draft, laid: Laid, pricing: Pricing, work: list[Work]) -> None:
        self._flow, self._live, self._layouts = draft.flow, draft.live.lines, laid.layouts
        self._in_order, self._pricing = draft.order == "none", pricing
        self._work = work

    def read(self, node: str, line: Line, wanted: Positions) -> Edge:
        """How a node reads wanted positions of a line."""
        found, anchor = self._layouts.find(line, wanted), self._layouts.anchor(line, self._live)
        return self.join(node, Join(line, wanted, found, anchor, self._layouts.joins(line)))

    def join(self, node: str, join: Join) -> Edge:
        """How a selection is put together for all who read it."""
        line, found = join.line, join.found
        pieces = self._pieces(join)
        weight = self._flow.nbytes[line.value] // max(1, self._flow.sizes[line])
        axis, spread = line.axis, None
        if line.axis == GRID:
            axis = next((r.axis for r in found.roots if r is not None), join.anchor.axis)
            spread = _spread(self._flow.grids[line], axis, len(join.layout))
        axes = len(self._flow.shapes[pieces[0].value])
        return Edge(node, line.value, axis, axes, tuple(pieces), weight, spread, join.joined)

    def _pieces(self, join: Join) -> list[Piece]:
        """The pieces of what was found, in order; of nothing, one that holds no channel."""
        found, joined = join.found, join.joined
        if not len(found.root):
            return [Piece(join.anchor.value, 0, 0)]
        breaks = np.flatnonzero(np.diff(found.root)) + 1
        filled = [root for root in found.roots if root is not None]
        most = 1 if self._in_order else MOST_ZEROS
        if not joined and len(filled) == 1 < len(found.roots) and len(breaks) > most:
            mine = found.root == found.roots.index(filled[0])
            places = np.full(len(mine), -1)
            places[mine] = self._layouts.place(filled[0], found.position[mine])
            only = self._part(filled[0], len(places), len(breaks))
            self._work.append(FetchWork((only,), joined=False))
            return [self._gathered(filled[0], places)]
        pieces: list[Piece] = []
        parts: list[Fetched] = []
        for part in np.split(np.arange(len(found.root)), breaks):
            root = found.roots[int(found.root[part[0]])]
            if root is None:
                pieces.append(Piece(join.anchor.value, 0, len(part), zeros=True))
            else:
                places = self._layouts.place(root, found.position[part])
                stretches = runs(places)
                parts.append(self._part(root, len(places), len(stretches)))
                pieces += self._taken(root, places, stretches, parts[-1], joined=joined)
        if parts:
            self._work.append(FetchWork(tuple(parts), joined))
        return pieces

    def _taken(
        self,
        root: Line,
        places: Positions,
        stretches: list[tuple[int, int]],
        part: Fetched,
        *,
        joined: bool,
    ) -> list[Piece]:
        """Channels of one tensor: a slice for each stretch, or one gather."""
        if len(stretches) > 1 and (
            self._in_order or self._pricing.pays_to_gather(self._flow, part, joined=joined)
        ):
            return [self._gathered(root, places)]
        size = len(self._layouts.of(root))
        return [
            Piece(root.value, start, length, whole=length == size) for start, length in stretches
        ]

    def _part(self, root: Line, channels: int, stretches: int) -> Fetched:
        return Fetched(root, channels, stretches, whole=channels == len(self._layouts.of(root)))

    def _gathered(self, root: Line, places: Positions) -> Piece:
        by_rows = not self._in_order and self._pricing.gathers_rows(self._flow, root)
        return Piece(root.value, 0, len(places), tuple(places.tolist()), rows=by_rows)

    def asked(self, value: str) -> SizesRead:
        """Where to ask for the sizes of a value, and what to tell of its lines."""
        shape, lines = self._flow.shapes[value], self._flow.lines.get(value, ())
        grid = self._flow.grids.get(lines[0]) if lines else None
        axes = grid.axes if grid else tuple(range(len(shape)))
        fixed = {axis: shape[axis] for axis, flat in enumerate(axes) if flat is None}
        fixed |= {line.axis: shape[line.axis] for line in lines if line.axis != GRID}
        anchor = self._layouts.anchor(lines[0], self._live).value if lines else value
        if grid and anchor == value:
            axes = tuple(range(len(shape)))
        return SizesRead(anchor, axes, fixed)


def _spread(grid: HeadGrid, axis: int, channels: int) -> Spread:
    """How to spread fetched channels, which lie along an axis, over a grid."""
    count = len(grid.sizes)
    spread = iter(range(axis, axis + count))
    order = tuple(
        next(spread) if flat is None else flat + (count - 1) * (flat > axis) for flat in grid.axes
    )
    last = channels // grid.blocks if grid.blocks else grid.sizes[-1]
    return Spread((*grid.sizes[:-1], last), order)
