"""Pooling over space, with every way of padding."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.nn import functional as F

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build
from upscale.onnx_files.operators.padding import padded, pads_of
from upscale.onnx_files.operators.table import Call, rank_of, rule

MAXIMA: dict[int, Any] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
MEANS: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@rule("MaxPool")
def max_pool(call: Call, build: Build) -> Any:
    """The greatest number in each window."""
    if len([name for name in call.outputs if name]) > 1:
        raise OnnxError("the places of its maxima are not supported")
    read, kernel, strides, dilations, before, after = _windows(call, build)
    if _even(kernel, before, after):
        padding = tuple(before)
    else:
        read = padded(build, read, before, after, -math.inf)
        padding = (0,) * len(kernel)
    ceil = bool(call.attribute("ceil_mode", 0))
    return build.call(MAXIMA[len(kernel)], read, kernel, strides, padding, dilations, ceil)


@rule("AveragePool")
def average_pool(call: Call, build: Build) -> Any:
    """The mean of each window, in which padding counts only if the file says so."""
    read, kernel, strides, dilations, before, after = _windows(call, build)
    if any(own != 1 for own in dilations):
        raise OnnxError("dilations are not supported")
    counts, ceil = (
        bool(call.attribute("count_include_pad", 0)),
        bool(call.attribute("ceil_mode", 0)),
    )
    pool = MEANS[len(kernel)]
    if _even(kernel, before, after):
        return build.call(pool, read, kernel, strides, tuple(before), ceil, counts)
    none = (0,) * len(kernel)
    made = build.call(pool, padded(build, read, before, after), kernel, strides, none, ceil)
    if counts:
        return made
    # The share of each window that is no padding, by which the mean over all of it is too small.
    index = (slice(0, 1), slice(0, 1))
    ones = build.call(torch.ones_like, build.call(operator.getitem, read, index))
    share = build.call(pool, padded(build, ones, before, after), kernel, strides, none, ceil)
    return build.call(operator.truediv, made, share)


@rule("GlobalAveragePool GlobalMaxPool")
def over_all(call: Call, build: Build) -> Any:
    """The mean, or the greatest, of each channel."""
    read = call.read(0, build)
    function: Any = torch.mean if call.operator == "GlobalAveragePool" else torch.amax
    return build.call(function, read, tuple(range(2, rank_of(read))), True)


def _windows(call: Call, build: Build) -> tuple[Any, ...]:
    read = call.read(0, build)
    kernel = tuple(call.attribute("kernel_shape"))
    if len(kernel) not in MAXIMA or rank_of(read) != len(kernel) + 2:
        raise OnnxError("only over one to three axes of space")
    strides = tuple(call.attribute("strides", [1] * len(kernel)))
    dilations = tuple(call.attribute("dilations", [1] * len(kernel)))
    before, after = pads_of(call, build, read, kernel, strides, dilations)
    return read, kernel, strides, dilations, before, after


def _even(kernel: tuple[int, ...], before: list[Any], after: list[Any]) -> bool:
    """Whether torch's pooling can pad itself: alike on both sides, and at most half a window."""
    plain = all(isinstance(own, int) for own in before)
    return (
        plain and before == after and all(2 * b <= k for b, k in zip(before, kernel, strict=True))
    )
