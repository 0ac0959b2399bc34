"""Where data goes: run a movement operation on channel numbers and read the numbers off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from upscale.capture import Call, Ref
from upscale.channels import Positions
from upscale.flow.relations import Grid, Line

PERMUTING = {"permute", "transpose", "swapaxes", "swapdims", "movedim", "contiguous", "clone"}
RESHAPING = {"view", "reshape", "_unsafe_view", "flatten", "unflatten"}


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A value whose channels are spread over several axes.

    `positions` holds, along the axes that `grid` spreads them over, the positions of `root`,
    the flat line they come from; a computed grid is its own root.
    """

    root: Line
    grid: Grid
    positions: Positions


def numbers_after(call: Call, value: str, shape: tuple[int, ...], axis: int) -> list[Positions]:
    """Run a call on a tensor of positions along one axis; the numbers in each result.

    Axes of a result along which the numbers do not vary have length one.
    """
    line = [1] * len(shape)
    line[axis] = shape[axis]
    numbers = torch.arange(shape[axis], dtype=torch.int32).view(line).expand(shape)
    return [_squeeze(result) for result in _run(call, {value: numbers})]


def permutation(call: Call, value: str, rank: int) -> tuple[int, ...]:
    """How a call that only permutes axes permutes them."""
    (result,) = _run(call, {value: torch.empty(tuple(range(2, rank + 2)), device="meta")})
    return tuple(size - 2 for size in result.shape)


def split(line: Line, shape: Sequence[int], out: Sequence[int]) -> Split | None:
    """The split a reshape makes of a line, if it leaves every other axis as it was."""
    before, after = tuple(shape[: line.axis]), tuple(shape[line.axis + 1 :])
    end = len(out) - len(after)
    if tuple(out[: line.axis]) != before or tuple(out[end:]) != after or end <= line.axis:
        return None
    parts = tuple(out[line.axis : end])
    axes = (*range(line.axis), *(None for _ in parts), *range(line.axis + 1, len(shape)))
    return Split(line, Grid(axes, parts), np.arange(shape[line.axis]).reshape(parts))


def permuted(call: Call, value: str, given: Split) -> Split:
    """A split after its axes were permuted."""
    order = permutation(call, value, len(given.grid.axes))
    spread = [axis for axis in order if given.grid.axes[axis] is None]
    positions = given.positions.transpose(np.argsort(np.argsort(spread)).tolist())
    axes = tuple(given.grid.axes[axis] for axis in order)
    return Split(given.root, Grid(axes, positions.shape), positions)


def picked(call: Call, value: str, given: Split) -> list[Split] | None:
    """The splits that a select, chunk or slice along one spread axis leaves."""
    axis = call.argument("dim") % len(given.grid.axes)
    if given.grid.axes[axis] is not None:
        return None
    place = sum(a is None for a in given.grid.axes[:axis])
    size = given.grid.sizes[place]
    shape = [1] * len(given.grid.axes)
    shape[axis] = size
    splits = []
    for numbers in _run(call, {value: torch.arange(size).view(shape)}):
        chosen = numbers.reshape(-1).numpy()
        positions = given.positions.take(chosen, axis=place)
        axes = given.grid.axes
        if numbers.ndim < len(shape):
            positions = positions.squeeze(place)
            axes = axes[:axis] + axes[axis + 1 :]
        splits.append(Split(given.root, Grid(axes, positions.shape), positions))
    return splits


def merged(given: Split, shape: Sequence[int], out: Sequence[int]) -> int | None:
    """The axis that a reshape makes of a split's spread axes, if it leaves the others alone."""
    spread = [i for i, axis in enumerate(given.grid.axes) if axis is None]
    first, last = spread[0], spread[-1]
    joined = [*shape[:first], given.positions.size, *shape[last + 1 :]]
    return first if spread == list(range(first, last + 1)) and joined == list(out) else None


def regrouped(given: Split, shape: Sequence[int], out: Sequence[int]) -> Split | None:
    """The split that a reshape makes by grouping spread axes anew, if it leaves the others."""
    axes: list[int | None] = []
    sizes: list[int] = []
    rest = list(out)
    for spread, run in groupby(zip(given.grid.axes, shape, strict=True), lambda a: a[0] is None):
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
    return Split(given.root, Grid(tuple(axes), tuple(sizes)), given.positions.reshape(sizes))


def _run(call: Call, inputs: dict[str, Tensor]) -> list[Tensor]:
    def fill(leaf: Any) -> Any:
        return inputs[leaf.value] if isinstance(leaf, Ref) else leaf

    args = tree_map(fill, call.args, is_leaf=lambda x: isinstance(x, Ref))
    kwargs = tree_map(fill, dict(call.kwargs), is_leaf=lambda x: isinstance(x, Ref))
    # Numbers stand in expanded memory, which a view refuses and a reshape takes.
    views = call.op in ("view", "_unsafe_view")
    result = torch.reshape(*args, **kwargs) if views else call.overload(*args, **kwargs)
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def _squeeze(numbers: Tensor) -> Positions:
    for axis in range(numbers.ndim):
        first = numbers.narrow(axis, 0, min(1, numbers.shape[axis]))
        if numbers.shape[axis] > 1 and bool((numbers == first).all()):
            numbers = first
    return np.asarray(numbers.numpy(), dtype=np.int64)
