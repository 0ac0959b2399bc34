"""Types of numbers: ONNX's and torch's."""

from __future__ import annotations

import torch

from upscale.errors import OnnxError

DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32,
    7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip


def dtype_of(number: int) -> torch.dtype:
    """The type that ONNX has a number for.

    >>> dtype_of(1)
    torch.float32
    """
    if number not in DTYPES:
        raise OnnxError(f"numbers of type {number} are not supported")
    return DTYPES[number]
