"""Moved channels: where data goes, and channels that lie along several axes of a value at once.

An operation that moves data is run on the numbers of channels, and we look where they went.

Attention reshapes six channels into two heads of three: `(1, 6, 5)` becomes `(1, 2, 3, 5)`. No
single axis tells the six apart any more, so the value has no plain line. It has a *split*: which
axes the channels lie along, and where on them each channel of the line it came from (the *root*)
went.

>>> heads = split(Line("x", 1), (1, 6, 5), (1, 2, 3, 5))
>>> heads.grid.axes  # of the flat tensor; None for the axes that channels are spread over
(0, None, None, 2)
>>> heads.positions.tolist()
[[0, 1, 2], [3, 4, 5]]

While data only moves, nothing is computed: the split follows, and whoever merges the axes again
finds the channels where they are. Taking the second head leaves the root's last three channels.
Once something is computed from the spread channels (a softmax over places, attention itself), the
result is its own root, and stays spread until its axes are merged: it is then a line of `blocks`
that must keep equally many channels each, as a tensor of heads cannot be ragged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from upscale.capture import Call, Ref
from upscale.channels import Positions
from upscale.flow.lines import GRID, HeadGrid, Line
from upscale.flow.walk import Declined, Walk

SPREAD = "its channels are spread over several axes"


def numbers_after(call: Call, shape: tuple[int, ...], axis: int) -> list[Positions]:
    """Run a call on a tensor of positions along one axis; the numbers in each result.

    A transpose of two places and three channels is run on a tensor whose entries say which channel
    they are of. What comes out says where each channel went:

        [[0, 1, 2],      transpose      [[0, 0],
         [0, 1, 2]]                      [1, 1],
                                         [2, 2]]

    The numbers vary along the first axis alone: that is where the channels lie now, in order. Axes
    of a result along which the numbers do not vary have length one.
    """
    line = [1] * len(shape)
    line[axis] = shape[axis]
    numbers = torch.arange(shape[axis], dtype=torch.int32).view(line).expand(shape)
    return [_squeezed(result) for result in run_on(call, numbers)]


def run_on(call: Call, *tensors: Tensor) -> list[Tensor]:
    """The tensors that a call makes of others, in the place of those that it was given."""
    given = iter(tensors)
    args, kwargs = tree_map_only(Ref, lambda _: next(given), (call.args, dict(call.kwargs)))
    result = call.overload(*args, **kwargs)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def _squeezed(numbers: Tensor) -> Positions:
    for axis in range(numbers.ndim):
        first = numbers.narrow(axis, 0, min(1, numbers.shape[axis]))
        if numbers.shape[axis] > 1 and bool((numbers == first).all()):
            numbers = first
    return np.asarray(numbers.numpy(), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A value whose channels are spread over several axes.

    `positions` holds, along the axes that `grid` spreads them over, the positions of `root`,
    the flat line they come from; a computed grid is its own root.
    """

    root: Line
    grid: HeadGrid
    positions: Positions

    @property
    def computed(self) -> bool:
        """Whether the channels were computed as they are spread here."""
        return self.root.axis == GRID

    @property
    def head_axis(self) -> int | None:
        """The axis that heads lie along, where channels lie along that and one more alone."""
        return self.grid.spread[0] if len(self.grid.sizes) == 2 else None


def split(line: Line, shape: Sequence[int], out: Sequence[int]) -> Split | None:
    """The split a reshape makes of a line, if it leaves every other axis as it was."""
    before, after = tuple(shape[: line.axis]), tuple(shape[line.axis + 1 :])
    end = len(out) - len(after)
    if tuple(out[: line.axis]) != before or tuple(out[end:]) != after or end <= line.axis:
        return None
    parts = tuple(out[line.axis : end])
    axes = (*range(line.axis), *(None for _ in parts), *range(line.axis + 1, len(shape)))
    return Split(line, HeadGrid(axes, parts), np.arange(shape[line.axis]).reshape(parts))


def permuted(heads: Split, order: Sequence[int]) -> Split:
    """A split after its axes were permuted: axis i is now what axis `order[i]` was.

    >>> heads = split(Line("x", 1), (1, 6, 5), (1, 2, 3, 5))
    >>> permuted(heads, (0, 2, 3, 1)).positions.tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    spread = [axis for axis in order if heads.grid.axes[axis] is None]
    positions = heads.positions.transpose(np.argsort(np.argsort(spread)).tolist())
    axes = tuple(heads.grid.axes[axis] for axis in order)
    return Split(heads.root, HeadGrid(axes, positions.shape), positions)


def merged(heads: Split, shape: Sequence[int], out: Sequence[int]) -> int | None:
    """The axis that a reshape makes of a split's spread axes, if it leaves the others alone.

    >>> heads = split(Line("x", 1), (1, 6, 5), (1, 2, 3, 5))
    >>> merged(heads, (1, 2, 3, 5), (1, 6, 5))
    1
    """
    spread = [i for i, axis in enumerate(heads.grid.axes) if axis is None]
    first, last = spread[0], spread[-1]
    joined = [*shape[:first], heads.positions.size, *shape[last + 1 :]]
    return first if spread == list(range(first, last + 1)) and joined == list(out) else None


def regrouped(heads: Split, shape: Sequence[int], out: Sequence[int]) -> Split | None:
    """The split that a reshape makes by grouping spread axes anew, if it leaves the others.

    >>> heads = split(Line("x", 1), (2, 6, 5), (2, 2, 3, 5))
    >>> regrouped(heads, (2, 2, 3, 5), (2, 3, 2, 5)).positions.tolist()
    [[0, 1], [2, 3], [4, 5]]
    """
    axes: list[int | None] = []
    sizes: list[int] = []
    rest = list(out)
    for spread, run in groupby(zip(heads.grid.axes, shape, strict=True), lambda a: a[0] is None):
        if spread:
            left = math.prod(size for _, size in run)
            while left > 1 and rest and rest[0] and left % rest[0] == 0:
                left //= rest[0]
                axes.append(None)
                sizes.append(rest.pop(0))
            if left > 1:
                return None
        else:
            for axis, size in run:
                # An axis of length one cannot be told from one that comes or goes.
                if size == 1 or not rest or rest.pop(0) != size:
                    return None
                axes.append(axis)
    if rest or not sizes:
        return None
    return Split(heads.root, HeadGrid(tuple(axes), tuple(sizes)), heads.positions.reshape(sizes))


def stays_spread(
    walk: Walk, out: str, read: str, axes: tuple[int | None, ...], *, loose: bool = True
) -> None:
    """Say that a computed value has its channels spread as one that it is computed from.

    Whole blocks may leave it if they may leave what is read, and nothing else has them (`loose`).
    """
    sizes = walk.splits[read].grid.sizes
    if 0 in sizes:
        raise Declined("it has no channels")
    line, grid = Line(out, GRID), HeadGrid(axes, sizes)
    walk.ties(line, [Line(read, GRID)])
    positions = np.arange(int(np.prod(sizes))).reshape(sizes)
    walk.splits[out] = Split(line, grid, positions)
    walk.grids[line], walk.blocks[line] = grid, grid.blocks
    may_leave = Line(read, GRID) in walk.loose or not walk.splits[read].computed
    if loose and may_leave and len(sizes) == 2:
        walk.loose.add(line)
    else:
        walk.loose.discard(line)


def becomes_spread(walk: Walk, out: str, heads: Split, *, joined: bool = False) -> None:
    """Say that a value holds the channels of a split, and that nothing computed them anew."""
    line = Line(out, GRID)
    walk.takes(line, heads.root, heads.positions, joined=joined)
    walk.splits[out], walk.grids[line] = heads, heads.grid


def permute_spread(call: Call, walk: Walk, value: str) -> None:
    """Spread axes change places; those that something computed must keep their order."""
    heads = walk.splits[value]
    # Sizes that all differ tell which axis went where.
    sizes = range(2, 2 + len(heads.grid.axes))
    (result,) = run_on(call, torch.empty(tuple(sizes), device="meta"))
    after = permuted(heads, [size - 2 for size in result.shape])
    if not heads.computed:
        becomes_spread(walk, call.outs[0], after)
    elif np.array_equal(after.positions, heads.positions):
        stays_spread(walk, call.outs[0], value, after.grid.axes)
    else:
        raise Declined(f"{call.op} exchanges axes that channels are spread over")


def reshape_spread(call: Call, walk: Walk, value: str) -> None:
    """Spread axes are merged into a line again, or grouped anew, or stay as they are."""
    heads, out = walk.splits[value], call.outs[0]
    if heads.computed and walk.shape(value) == walk.shape(out):
        stays_spread(walk, out, value, heads.grid.axes)
        return
    axis = merged(heads, walk.shape(value), walk.shape(out))
    if axis is not None:
        _merge(walk, heads, Line(out, axis))
        return
    anew = None if heads.computed else regrouped(heads, walk.shape(value), walk.shape(out))
    if anew is None:
        raise Declined(SPREAD)
    becomes_spread(walk, out, anew)


def _merge(walk: Walk, heads: Split, out: Line) -> None:
    rest = [axis for axis in heads.grid.axes if axis is not None]
    if heads.computed:
        walk.ties(out, [heads.root])
        walk.blocks[out] = heads.grid.blocks
    elif out.axis == heads.root.axis and rest == sorted(rest):
        walk.takes(out, heads.root, heads.positions)
    else:
        raise Declined("its channels come to lie along another axis")


def pick_spread(call: Call, walk: Walk, value: str) -> None:
    """Some places of one spread axis are taken: a head, or queries out of queries and keys."""
    heads = walk.splits[value]
    if heads.computed:
        raise Declined(SPREAD)
    axes = heads.grid.axes
    axis = call.arguments["dim"] % len(axes)
    if axes[axis] is not None:
        raise Declined(f"{call.op} cuts channels that are spread over several axes")
    place = axes[:axis].count(None)
    shape = [1] * len(axes)
    shape[axis] = size = heads.grid.sizes[place]
    for out, numbers in zip(call.outs, run_on(call, torch.arange(size).view(shape)), strict=True):
        positions = heads.positions.take(numbers.reshape(-1).numpy(), axis=place)
        left = axes
        if numbers.ndim < len(axes):
            positions, left = positions.squeeze(place), axes[:axis] + axes[axis + 1 :]
        if not positions.size and left == axes and len(call.outs) == 1:
            _nothing_of_each(walk, out, value)
            return
        if not positions.shape:
            raise Declined(f"{call.op} picks single channels by number")
        becomes_spread(walk, out, Split(heads.root, HeadGrid(left, positions.shape), positions))


def _nothing_of_each(walk: Walk, out: str, value: str) -> None:
    """No channel of any head is taken, as of heads that are rotated in full; heads stay."""
    axis = walk.splits[value].head_axis
    if axis is None or not walk.shape(out)[axis]:
        raise Declined(SPREAD)
    walk.serves(Line(out, axis), [Line(value, GRID)], walk.shape(out)[axis], makes=True)


def unsqueeze_spread(call: Call, walk: Walk, value: str) -> None:
    """An axis of length one comes between heads and their width: channels lie along it too."""
    heads = walk.splits[value]
    if heads.computed:
        raise Declined(SPREAD)
    axes = list(heads.grid.axes)
    axis = call.arguments["dim"] % (len(axes) + 1)
    positions = np.expand_dims(heads.positions, axes[:axis].count(None))
    axes.insert(axis, None)
    grid = HeadGrid(tuple(axes), positions.shape)
    becomes_spread(walk, call.outs[0], Split(heads.root, grid, positions))


def expand_spread(call: Call, walk: Walk, value: str) -> None:
    """Heads are repeated along an axis of length one, each for the queries of its group."""
    heads, out = walk.splits[value], call.outs[0]
    axes = heads.grid.axes
    before, after = walk.shape(value), walk.shape(out)
    grown = [i for i in range(len(axes)) if len(before) == len(after) and before[i] != after[i]]
    if heads.computed or len(before) != len(after) or any(axes[i] is not None for i in grown):
        raise Declined(SPREAD)
    sizes = tuple(size for size, flat in zip(after, axes, strict=True) if flat is None)
    positions = np.broadcast_to(heads.positions, sizes)
    grid = HeadGrid(axes, sizes)
    becomes_spread(walk, out, Split(heads.root, grid, positions), joined=True)


def repeat_spread(call: Call, walk: Walk, value: str) -> None:
    """Every head is repeated, for the queries of its group."""
    heads, out = walk.splits[value], call.outs[0]
    repeats, dim = call.arguments.get("repeats"), call.arguments.get("dim")
    axes = heads.grid.axes
    if heads.computed or not (isinstance(repeats, int) and isinstance(dim, int)):
        raise Declined(SPREAD)
    if axes[dim % len(axes)] is not None:
        raise Declined(SPREAD)
    positions = heads.positions.repeat(repeats, axis=axes[: dim % len(axes)].count(None))
    grid = HeadGrid(axes, positions.shape)
    becomes_spread(walk, out, Split(heads.root, grid, positions), joined=True)
