"""Layouts: which position of the original stands at which place of each pruned tensor, and how
a read fetches it from there.

One map per line, and one question asked of it: where do these positions lie now? A line that
only selects from others has no layout of its own; it is looked through to where the data is.

Say `a` keeps 2 and 0 of three channels, in that order, `b` both of its two, and `c = cat(a, b)`.
Positions 0, 1, 2 of `c` are `a`'s, 3 and 4 `b`'s. Who wants 0, 2 and 4 of `c` finds them at the
places 1 and 0 of `a` and 1 of `b`, and reads them as they lie, in the order 2, 0, 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from upscale.channels import Flags, Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.lines import GRID, HeadGrid, Line
from upscale.flow.relations import Live, Select
from upscale.planning.plan import Edge, Piece, SizesRead, Spread
from upscale.targets.prices import MOST_ZEROS
from upscale.targets.target import Fetched, FetchWork, Pricing, Work


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


def same(one: Positions, other: Positions) -> bool:
    """Whether positions are the same, in the same order; most that are are one array."""
    return one is other or np.array_equal(one, other)


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


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where wanted positions lie: for each a root line (by number) and a position of it."""

    roots: tuple[Line | None, ...]
    root: Positions
    position: Positions


class Layouts:
    """The physical layout of every line met so far."""

    def __init__(self, flow: ChannelFlow) -> None:
        self._flow = flow
        self._physical: dict[Line, Positions] = {}
        self._places: dict[Line, Positions] = {}
        self._selects: dict[Line, Select] = {}
        self._seen: dict[Line, Found] = {}

    def put(self, line: Line, layout: Positions) -> None:
        """Say which positions a line holds, in order."""
        self._physical[line] = layout
        self._places.pop(line, None)
        if line in self._selects:
            self._seen.clear()

    def look_through(self, relation: Select) -> None:
        """Say that a line is a selection from others."""
        self._selects[relation.out] = relation

    def knows(self, line: Line) -> bool:
        """Whether it has been said where a line's positions lie."""
        return line in self._physical or line in self._selects

    def is_select(self, line: Line) -> bool:
        """Whether a line has to be fetched from elsewhere."""
        return line in self._selects and line not in self._physical

    def joins(self, line: Line) -> bool:
        """Whether the unpruned model copies channels together to make a line."""
        while self.is_select(line):
            select = self._selects[line]
            if select.joined:
                return True
            line = select.reads[0]
        return False

    def of(self, line: Line) -> Positions:
        """The layout of a line that is no selection; its own order if nothing was said."""
        if line not in self._physical:
            self.put(line, np.arange(self._flow.sizes[line]))
        return self._physical[line]

    def find(self, line: Line, wanted: Positions) -> Found:
        """Follow wanted positions through selections to the lines that hold them."""
        if not self.is_select(line):
            return Found((line,), np.zeros_like(wanted), wanted)
        seen = self._seen_through(line)
        ways = seen.root[wanted]
        roots: dict[Line | None, int] = {}
        number = np.zeros(len(seen.roots), dtype=np.int64)
        for way in np.flatnonzero(np.bincount(ways, minlength=len(number))).tolist():
            number[way] = roots.setdefault(seen.roots[way], len(roots))
        return Found(tuple(roots), number[ways], seen.position[wanted])

    def _seen_through(self, line: Line) -> Found:
        """Where all positions of a selection lie; a line reached in two ways comes twice."""
        if line not in self._seen:
            select, roots = self._selects[line], list[Line | None]()
            root, position = np.empty_like(select.operand), np.full_like(select.operand, -1)
            for index in sorted(set(select.operand.tolist())):
                mine = select.operand == index
                inner, there = None if index < 0 else select.reads[index], select.position[mine]
                if inner is not None and self.is_select(inner):
                    found = self._seen_through(inner)
                    root[mine], position[mine] = (
                        len(roots) + found.root[there],
                        found.position[there],
                    )
                    roots += found.roots
                else:
                    root[mine], position[mine] = len(roots), -1 if inner is None else there
                    roots.append(inner)
            self._seen[line] = Found(tuple(roots), root, position)
        return self._seen[line]

    def anchor(self, line: Line, live: Live) -> Line:
        """A line of a tensor that has the shape of this one's value, but for the line itself."""
        while self.is_select(line):
            found = self.find(line, np.flatnonzero(live[line]))
            roots = [root for root in found.roots if root is not None]
            line = roots[0] if roots else self._selects[line].reads[0]
        return line

    def place(self, line: Line, wanted: Positions) -> Positions:
        """The places in a physical line of positions it holds."""
        if line not in self._places:
            self._places[line] = places(self.of(line), self._flow.sizes[line])
        return self._places[line][wanted]

    def arrange(self, line: Line, wanted: Positions) -> Positions:
        """The wanted positions in the order in which they lie in memory."""
        if not self.is_select(line):
            layout, asked = self.of(line), np.zeros(self._flow.sizes[line], dtype=bool)
            asked[wanted] = True
            asked = asked[layout]
            if np.count_nonzero(asked) == len(wanted):
                return layout if len(layout) == len(wanted) else layout[asked]
        found = self.find(line, wanted)
        key = np.empty_like(wanted)
        for number, root in enumerate(found.roots):
            mine = found.root == number
            if root is not None:
                key[mine] = self.place(root, found.position[mine])
            else:
                key[mine] = wanted[mine]
        return wanted[np.lexsort((wanted, key, found.root))]


def rooted(classes: Positions, live: Flags, rank: Positions | None, *, nested: bool) -> Positions:
    """The layout of a line that is computed here: its live positions in class order.

    Without ranks the positions stay in their own order. A class that occurs several times
    stands in blocks, one per occurrence; `nested`, its occurrences stand side by side.
    """
    positions = np.flatnonzero(live)
    if rank is None:
        return positions
    key = rank[classes[positions]]
    if (classes[1:] > classes[:-1]).all():  # each occurs once
        return positions[np.argsort(key, kind="stable")]
    turn = occurrences(classes)[positions]
    order = np.lexsort((turn, key)) if nested else np.lexsort((key, turn))
    return positions[order]


class Fetching:
    """Makes edges of reads, and adds to `work` what they have to fetch."""

    def __init__(
        self, flow: ChannelFlow, live: Live, layouts: Layouts, pricing: Pricing, *, in_order: bool
    ) -> None:
        self._flow, self._live, self._layouts = flow, live, layouts
        self._in_order, self._pricing = in_order, pricing
        self.work: list[Work] = []

    def edge(self, node: str, line: Line, wanted: Positions) -> Edge:
        """How a node reads wanted positions of a line, or puts it together for all its readers."""
        found, anchor = self._layouts.find(line, wanted), self._layouts.anchor(line, self._live)
        joined = self._layouts.joins(line)
        pieces = self._pieces(found, anchor, joined=joined)
        weight = self._flow.nbytes[line.value] // max(1, self._flow.sizes[line])
        axis, spread = line.axis, None
        if line.axis == GRID:
            axis = next((r.axis for r in found.roots if r is not None), anchor.axis)
            spread = _spread(self._flow.grids[line], axis, wanted)
        axes = len(self._flow.shapes[pieces[0].value])
        return Edge(node, line.value, axis, axes, tuple(pieces), weight, spread, joined)

    def _pieces(self, found: Found, anchor: Line, *, joined: bool) -> list[Piece]:
        """The pieces of what was found, in order; of nothing, one that holds no channel."""
        if not len(found.root):
            return [Piece(anchor.value, 0, 0)]
        breaks = np.flatnonzero(np.diff(found.root)) + 1
        filled = [root for root in found.roots if root is not None]
        most = 1 if self._in_order else MOST_ZEROS
        if not joined and len(filled) == 1 < len(found.roots) and len(breaks) > most:
            mine = found.root == found.roots.index(filled[0])
            places = np.full(len(mine), -1)
            places[mine] = self._layouts.place(filled[0], found.position[mine])
            only = self._part(filled[0], len(places), len(breaks))
            self.work.append(FetchWork((only,), joined=False))
            return [self._gathered(filled[0], places)]
        pieces: list[Piece] = []
        parts: list[Fetched] = []
        for part in np.split(np.arange(len(found.root)), breaks):
            root = found.roots[int(found.root[part[0]])]
            if root is None:
                pieces.append(Piece(anchor.value, 0, len(part), zeros=True))
            else:
                places = self._layouts.place(root, found.position[part])
                stretches = runs(places)
                parts.append(self._part(root, len(places), len(stretches)))
                pieces += self._taken(root, places, stretches, parts[-1], joined=joined)
        if parts:
            self.work.append(FetchWork(tuple(parts), joined))
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


def _spread(grid: HeadGrid, axis: int, channels: Positions) -> Spread:
    """How to spread fetched channels, which lie along an axis, over a grid."""
    count = len(grid.sizes)
    spread = iter(range(axis, axis + count))
    order = tuple(
        next(spread) if flat is None else flat + (count - 1) * (flat > axis) for flat in grid.axes
    )
    return Spread(grid.left(channels), order)
