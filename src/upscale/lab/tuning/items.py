"""What a batch of a dataset holds: inputs, and labels if there are any."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from upscale.lab.tuning.recipes import TuningError


def parted(batch: Any) -> tuple[Tensor, Tensor | None]:
    """The inputs of a batch, and its labels.

    >>> import torch
    >>> parted([torch.zeros(2, 3)])[1], parted([torch.zeros(2, 3), torch.tensor([0, 1])])[1]
    (None, tensor([0, 1]))
    """
    parts = [batch] if isinstance(batch, Tensor) else batch
    fits = isinstance(parts, (list, tuple)) and 1 <= len(parts) <= 2
    if not fits or not all(isinstance(part, Tensor) for part in parts):
        raise TuningError(
            f"a batch of the data is a {type(batch).__name__}; items must be inputs, or inputs and "
            "labels"
        )
    return parts[0], parts[1] if len(parts) == 2 else None
