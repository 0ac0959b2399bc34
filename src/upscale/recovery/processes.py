"""Several processes: each runs its own batches, and sums are those of all of them.

They are the processes of `torch.distributed`, if that was started; else there is one. Of batches
handed out in turn, number 3 of two processes' is the second of the second one.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if _started() else 1


def number_of(batch: int) -> int:
    """The number of one of this process's batches among those of all."""
    return batch * dist.get_world_size() + dist.get_rank() if _started() else batch


def summed(tensor: Tensor) -> Tensor:
    """A tensor, after adding those of the other processes to it."""
    if _started():
        dist.all_reduce(tensor)
    return tensor


def _started() -> bool:
    return dist.is_available() and dist.is_initialized()
