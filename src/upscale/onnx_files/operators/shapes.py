"""Operators that ask for shapes, and that make tensors of a shape out of nothing."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build
from upscale.onnx_files.operators.table import Call, rule
from upscale.onnx_files.values import Made, Size, Sizes, sizes_of


@rule("Shape")
def shape(call: Call, build: Build) -> Any:
    """The sizes of a tensor, or some of them."""
    found = build.shape_array(call.given(0))
    return sizes_of(found[slice(call.attribute("start", 0), call.attribute("end"))])


@rule("Size")
def size(call: Call, build: Build) -> Any:
    """How many numbers a tensor has."""
    made: Any = 1
    for own in build.shape_array(call.given(0)):
        made = own if made == 1 else build.arithmetic(operator.mul, made, own)
    return Sizes((made,), scalar=True) if isinstance(made, Size) else torch.tensor(made)


@rule("ConstantOfShape")
def constant_of_shape(call: Call, build: Build) -> Any:
    """One number everywhere."""
    value = call.attribute("value")
    value = torch.zeros(1) if value is None else value
    sizes = build.numbers(call.input(0), "shape")
    if all(isinstance(own, int) for own in sizes):
        return build.call(torch.full, tuple(sizes), value.item(), dtype=value.dtype)
    return build.method("new_full", build.inputs[0], tuple(sizes), value.item(), dtype=value.dtype)


@rule("Range")
def steps(call: Call, build: Build) -> Any:
    """Numbers from one to another, in equal steps."""
    given = [call.given(place) for place in (0, 1, 2)]
    if any(isinstance(own, Made) for own in given):
        raise OnnxError("its bounds are computed when the model runs")
    if all(isinstance(own, Tensor) for own in given):
        held = [build.constant(own, "bounds") for own in given]
        return build.call(torch.arange, *(own.item() for own in held), dtype=held[0].dtype)
    (start,), (end,), (step,) = (build.numbers(own, "bounds") for own in given)
    if step != 1:
        raise OnnxError("over a free size only steps of one are supported")
    length = build.arithmetic(operator.sub, end, start)
    ones = build.method("new_full", build.inputs[0], (length,), 1, dtype=torch.int64)
    counted = build.call(torch.cumsum, ones, 0)
    made = build.call(operator.add, counted, build.arithmetic(operator.sub, start, 1))
    dtype = next(own.dtype for own in given if isinstance(own, Sizes))
    return made if dtype is torch.int64 else build.method("to", made, dtype)
