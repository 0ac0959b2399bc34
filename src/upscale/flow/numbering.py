"""Where data goes: run an operation that moves data on the numbers of channels, and look.

A transpose of two places and three channels is run on a tensor whose entries say which channel
they are of. What comes out says where each channel went:

    [[0, 1, 2],      transpose      [[0, 0],
     [0, 1, 2]]                      [1, 1],
                                     [2, 2]]

The numbers vary along the first axis alone: that is where the channels lie now, in order.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from upscale.capture import Call, Ref
from upscale.channels import Positions


def numbers_after(call: Call, shape: tuple[int, ...], axis: int) -> list[Positions]:
    """Run a call on a tensor of positions along one axis; the numbers in each result.

    Axes of a result along which the numbers do not vary have length one.
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
