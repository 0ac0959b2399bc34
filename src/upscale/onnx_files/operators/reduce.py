"""Reductions over axes, and what works along one axis."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build
from upscale.onnx_files.operators.table import Call, rank_of, rule
from upscale.onnx_files.values import Size, Sizes, sizes_of

FUNCTIONS: dict[str, Any] = {
    "ReduceMean": torch.mean, "ReduceSum": torch.sum, "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
}  # fmt: skip


@rule(
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSum ReduceLogSumExp"
)
def reduce(call: Call, build: Build) -> Any:
    """Some axes become one number, or all of them."""
    value = call.given(0)
    if isinstance(value, Sizes):
        return _product(call, build, value)
    axes, read = call.attribute("axes"), build.tensor(value)
    if axes is None and call.input(1) is not None:
        axes = build.fixed(call.input(1), "axes")
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return read
    rank, keep = rank_of(read), bool(call.attribute("keepdims", 1))
    dims = tuple(axis % rank for axis in axes) if axes else tuple(range(rank))
    if not rank:
        return read
    name = call.operator
    if name == "ReduceProd":
        for axis in sorted(dims, reverse=True):
            read = build.call(torch.prod, read, axis, keep)
        return read
    if name == "ReduceLogSumExp":
        return build.call(torch.logsumexp, read, dims, keep)
    if name == "ReduceL1":
        read = build.call(torch.abs, read)
    if name in ("ReduceL2", "ReduceSumSquare"):
        read = build.call(operator.mul, read, read)
    made = build.call(FUNCTIONS.get(name, torch.sum), read, dims, keep)
    if name == "ReduceL2":
        return build.call(torch.sqrt, made)
    return build.call(torch.log, made) if name == "ReduceLogSum" else made


def _product(call: Call, build: Build, value: Sizes) -> Any:
    if call.operator != "ReduceProd":
        raise OnnxError("of sizes only the product is supported")
    made: int | Size = 1
    for own in value.entries:
        made = own if made == 1 else build.arithmetic(operator.mul, made, own)
    held = Sizes((made,)) if isinstance(made, Size) else sizes_of([made])
    scalar = not call.attribute("keepdims", 1)
    if isinstance(held, Sizes):
        return Sizes(held.entries, scalar=scalar)
    return held.reshape(()) if scalar else held


@rule("ArgMax ArgMin")
def place_of_most(call: Call, build: Build) -> Any:
    """Where the greatest, or least, number stands along an axis: the first of several."""
    call.only("select_last_index", 0)
    function: Any = torch.argmax if call.operator == "ArgMax" else torch.argmin
    read = call.read(0, build)
    axis, keep = call.attribute("axis", 0) % rank_of(read), bool(call.attribute("keepdims", 1))
    return build.call(function, read, axis, keep)


@rule("CumSum")
def cumulative(call: Call, build: Build) -> Any:
    """Sums along an axis, as they grow."""
    call.only("exclusive", 0)
    call.only("reverse", 0)
    (axis,) = build.fixed(call.input(1), "axis")
    return build.call(torch.cumsum, call.read(0, build), axis)


@rule("TopK")
def top(call: Call, build: Build) -> Any:
    """The greatest numbers along an axis, or the least, and where they stand."""
    read = call.read(0, build)
    (count,) = [call.attribute("k")] if call.opset < 10 else build.numbers(call.input(1), "K")
    axis = call.attribute("axis", -1) % rank_of(read)
    largest, order = bool(call.attribute("largest", 1)), bool(call.attribute("sorted", 1))
    return list(build.call(torch.topk, read, count, axis, largest, order))


@rule("Trilu")
def triangle(call: Call, build: Build) -> Any:
    """The upper or lower triangle of matrices."""
    shift = build.fixed(call.input(1), "k")[0] if call.input(1) is not None else 0
    function = torch.triu if call.attribute("upper", 1) else torch.tril
    return build.call(function, call.read(0, build), shift)


@rule("NonZero")
def non_zero(call: Call, build: Build) -> Any:
    """Where constants are not zero."""
    held: Tensor = build.constant(call.given(0), "input")
    return torch.nonzero(held).t().contiguous()
