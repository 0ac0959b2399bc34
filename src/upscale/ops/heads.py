"""Heads: blocks of channels along an axis of their own, which leave whole.

Rotated queries mix the channels of a head with one another and none of two heads. What is left to
tell apart is the heads: a line of the axis that they lie along.

    queries (images, 4 heads, places, 8)  ×  cosines (1, 1, places, 8)   a line of 4 positions
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from upscale.flow.lines import GRID
from upscale.flow.spread import SPREAD
from upscale.ops.table import Call, Declined, Line, Walk


def head_axis(walk: Walk, value: str) -> int | None:
    """The axis that heads lie along, in a value whose channels are spread over it and one more."""
    return walk.splits[value].head_axis if value in walk.splits else None


def in_heads(walk: Walk, value: str, axis: int, heads: int) -> Line | None:
    """The line of a value that has a block for each head along an axis; `None` if it has none."""
    if axis < 0 or walk.shape(value)[axis] != heads:
        return None
    if value in walk.splits:
        return Line(value, GRID) if head_axis(walk, value) == axis else None
    return Line(value, axis)


def within_heads(walk: Walk, out: str, read: str, touched: Collection[int]) -> None:
    """Say that heads pass an operation that mixes channels along some axes, and keeps all axes."""
    axis = head_axis(walk, read)
    if axis is None or axis in touched or len(walk.shape(out)) != len(walk.shape(read)):
        raise Declined(SPREAD)
    walk.serves(Line(out, axis), [Line(read, GRID)], walk.shape(read)[axis], makes=True)


def by_heads(call: Call, walk: Walk, values: Sequence[str], *, batch: int) -> bool:
    """Say that heads pass, each computed from its like alone; whether that could be said.

    They lie along the axis, counted from the last, that all values with heads agree on. The last
    `batch` axes are no places for heads.
    """
    (out,) = call.outs
    rank = len(walk.shape(out))
    found = set[int]()
    for value in values:
        behind = rank - len(walk.shape(value))
        axis = head_axis(walk, value)
        if value in walk.splits and axis is None:
            return False
        axes = [line.axis for line in walk.lines(value)] if axis is None else [axis]
        found.update(axis + behind for axis in axes if axis + behind < rank - batch)
    if len(found) != 1:
        return False
    (axis,) = found
    heads = walk.shape(out)[axis]
    reads = []
    for value in values:
        own = axis - rank + len(walk.shape(value))
        line = in_heads(walk, value, own, heads)
        if line is None and (value in walk.splits or (own >= 0 and walk.shape(value)[own] != 1)):
            return False
        if line is not None and (heads > 1 or line.axis == GRID or line in walk.lines(value)):
            reads.append(line)
    walk.serves(Line(out, axis), reads, heads, makes=True)
    return True
