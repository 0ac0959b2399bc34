"""Sketches: what tells a value from others, in a few texts and numbers, the same on any machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# A text must be the same, a number nearly so: other machines round otherwise.
Fact = str | float

MOST_LOOKED_AT = 2**16
# Places taken in steps of this lie all over a tensor, whatever its shape.
STEP = 2_654_435_761


def sketch(value: Any) -> tuple[Fact, ...]:
    """A value's kind and what it holds; of a large tensor, what it holds at many of its places.

    >>> sketch(3), sketch(torch.zeros(2))
    (('int 3',), ('float32 (2,) zero',))
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, (float, complex)):
        value = torch.tensor(value, dtype=torch.complex128 if isinstance(value, complex) else None)
    if isinstance(value, Tensor):
        return _of_tensor(value)
    if value is None or isinstance(value, (bool, int, str, bytes)):
        said = repr(value)
        return (f"{type(value).__name__} {said if len(said) < 80 else digest(said.encode())}",)
    if callable(getattr(value, "tobytes", None)):  # a picture, or an array of other things
        return (f"{type(value).__name__} {digest(value.tobytes())}",)
    return (type(value).__qualname__,)


def near(one: Sequence[Fact], other: Sequence[Fact], tolerance: float) -> bool:
    """Whether two rows of facts speak of the same thing."""
    return len(one) == len(other) and first_apart(one, other, tolerance) is None


def first_apart(one: Sequence[Fact], other: Sequence[Fact], tolerance: float) -> int | None:
    """The place of the first fact that differs, if there is one."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        numbers = isinstance(a, float) and isinstance(b, float)
        if not (abs(a - b) <= tolerance if numbers else a == b):  # type: ignore[operator]
            return place
    return None


def digest(data: bytes) -> str:
    """A short name for data."""
    return hashlib.sha256(data).hexdigest()[:16]


def _of_tensor(tensor: Tensor) -> tuple[Fact, ...]:
    kind = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return (kind,)
    tensor = tensor.detach()
    flat = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()
    if len(flat) > MOST_LOOKED_AT:
        places = torch.arange(MOST_LOOKED_AT, device=flat.device) * STEP % len(flat)
        flat = flat[places]
    flat = flat.cpu()
    # Pictures of bytes are scaled by arithmetic of their own on each processor.
    if not flat.is_floating_point() and flat.dtype != torch.uint8:
        return (f"{kind} {digest(flat.numpy().tobytes())}",)
    return _of_numbers(kind, flat.double())


def _of_numbers(kind: str, flat: Tensor) -> tuple[Fact, ...]:
    """How large numbers are, and their sum under fixed weights, in units of that size."""
    finite = flat.isfinite()
    lost = len(flat) - int(finite.sum())
    kind = f"{kind} with {lost} that are no numbers" if lost else kind
    flat = flat.where(finite, 0.0)
    size = float(flat.square().mean().sqrt()) if len(flat) else 0.0
    if size == 0:
        return (f"{kind} zero",)
    weights = torch.arange(len(flat), dtype=torch.float64).cos()
    return kind, math.log(size), float((flat / size) @ weights) / math.sqrt(len(flat))
