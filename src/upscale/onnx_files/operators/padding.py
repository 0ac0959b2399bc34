"""How much is padded, on which side, and padding itself."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch.nn import functional as F

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build
from upscale.onnx_files.operators.table import Call

Amounts = list[Any]


def pads_of(
    call: Call,
    build: Build,
    read: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[Amounts, Amounts]:
    """What is padded before and after each axis of space; a size where that depends on one."""
    auto = call.attribute("auto_pad", "NOTSET")
    spatial = len(kernel)
    if auto in ("NOTSET", "VALID"):
        pads = call.attribute("pads", [0] * 2 * spatial)
        pads = pads if auto == "NOTSET" else [0] * 2 * spatial
        return list(pads[:spatial]), list(pads[spatial:])
    before, after = list[Any](), list[Any]()
    for axis in range(spatial):
        window = (kernel[axis] - 1) * dilations[axis] + 1
        total = _same(build, read, axis + 2, window, strides[axis])
        less = build.arithmetic(operator.floordiv, total, 2)
        more = build.arithmetic(operator.sub, total, less)
        before.append(less if auto == "SAME_UPPER" else more)
        after.append(more if auto == "SAME_UPPER" else less)
    return before, after


def _same(build: Build, read: Any, axis: int, window: int, stride: int) -> Any:
    """What must be padded for a result of one in `stride` places, rounded up.

    A window of 3 at every second of 5 places needs (3 - 1) · 2 + 3 = 7: 2 are padded.
    """
    if stride == 1 or window == 1:
        return window - 1
    length = read.shape[axis]
    if length is not None:
        return max((-(-length // stride) - 1) * stride + window - length, 0)
    if window < stride:
        raise OnnxError("auto_pad with a window less than its stride needs a fixed size")
    size = build.size(read, axis)
    places = build.arithmetic(
        operator.floordiv, build.arithmetic(operator.add, size, stride - 1), stride
    )
    needs = build.arithmetic(
        operator.add, build.arithmetic(operator.mul, places, stride), window - stride
    )
    return build.arithmetic(operator.sub, needs, size)


def padded(
    build: Build,
    read: Any,
    before: Amounts,
    after: Amounts,
    value: float = 0.0,
    mode: str = "constant",
) -> Any:
    """A value with its last axes padded; negative amounts crop."""
    amounts = [own for pair in zip(reversed(before), reversed(after), strict=True) for own in pair]
    if all(own == 0 for own in amounts):
        return read
    while len(amounts) > 2 and amounts[-1] == amounts[-2] == 0:
        amounts = amounts[:-2]
    if mode == "constant":
        return build.call(F.pad, read, tuple(amounts), mode, value)
    return build.call(F.pad, read, tuple(amounts), mode)
