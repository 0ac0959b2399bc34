"""Where data goes: run a movement operation on channel numbers and read the numbers off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from upscale.capture import Call, Ref
from upscale.channels import Positions
from upscale.flow.domain import Line

PERMUTING = {"permute", "transpose", "swapaxes", "swapdims", "movedim", "contiguous", "clone"}
RESHAPING = {"view", "reshape", "_unsafe_view", "flatten", "unflatten"}


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A value whose line was spread over several axes on its way to another order.

    `axes` tells for each axis which axis of the root it is, `None` for those that the line
    `root` was spread over; `positions` holds the root's positions along the latter.
    """

    root: Line
    origin: str
    axes: tuple[int | None, ...]
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


def split(call: Call, line: Line, shape: Sequence[int], out: Sequence[int]) -> Split | None:
    """The split a reshape makes of a line, if it leaves every other axis as it was."""
    before, after = tuple(shape[: line.axis]), tuple(shape[line.axis + 1 :])
    end = len(out) - len(after)
    if tuple(out[: line.axis]) != before or tuple(out[end:]) != after or end <= line.axis:
        return None
    parts = tuple(out[line.axis : end])
    axes = (
        *range(line.axis),
        *(None for _ in parts),
        *range(line.axis + 1, len(shape)),
    )
    return Split(line, "", axes, np.arange(shape[line.axis]).reshape(parts))


def permuted(call: Call, value: str, given: Split) -> Split:
    """A split after its axes were permuted."""
    order = permutation(call, value, len(given.axes))
    spread = [axis for axis in order if given.axes[axis] is None]
    ranks = np.argsort(np.argsort(spread)).tolist()
    return Split(
        given.root,
        given.origin,
        tuple(given.axes[axis] for axis in order),
        given.positions.transpose(ranks),
    )


def merged(given: Split, shape: Sequence[int], out: Sequence[int], rank: int) -> Positions | None:
    """The root's positions once a reshape made one axis of a split's parts again."""
    spread = [i for i, axis in enumerate(given.axes) if axis is None]
    first, last = spread[0], spread[-1]
    whole = [*given.axes[:first], given.root.axis, *given.axes[last + 1 :]]
    joined = [*shape[:first], given.positions.size, *shape[last + 1 :]]
    if spread != list(range(first, last + 1)) or whole != list(range(rank)):
        return None
    return given.positions.reshape(-1) if joined == list(out) else None


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
