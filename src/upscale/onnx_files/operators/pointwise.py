"""Operators on each element alone, or on elements at one place of several tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build, Held, number
from upscale.onnx_files.dtypes import dtype_of
from upscale.onnx_files.operators.table import OPERATORS, Call, rank_of, rule
from upscale.onnx_files.values import Made, Size, Sizes, sizes_of

UNARY: dict[str, Callable[..., Any]] = {
    "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Exp": torch.exp,
    "Log": torch.log, "Sqrt": torch.sqrt, "Erf": torch.erf, "Abs": torch.abs, "Neg": torch.neg,
    "Floor": torch.floor, "Ceil": torch.ceil, "Round": torch.round, "Sign": torch.sign,
    "Reciprocal": torch.reciprocal, "Softplus": F.softplus, "Softsign": F.softsign,
    "Sin": torch.sin, "Cos": torch.cos, "Tan": torch.tan, "Asin": torch.asin, "Acos": torch.acos,
    "Atan": torch.atan, "Sinh": torch.sinh, "Cosh": torch.cosh, "Asinh": torch.asinh,
    "Acosh": torch.acosh, "Atanh": torch.atanh, "Not": torch.logical_not, "IsNaN": torch.isnan,
    "IsInf": torch.isinf, "HardSwish": F.hardswish, "Mish": F.mish,
}  # fmt: skip
BINARY: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Pow": operator.pow,
    "Equal": torch.eq, "Greater": torch.gt, "Less": torch.lt, "GreaterOrEqual": torch.ge,
    "LessOrEqual": torch.le, "And": torch.logical_and, "Or": torch.logical_or,
    "Xor": torch.logical_xor,
}  # fmt: skip
ON_SIZES = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.floordiv}


def _unary(call: Call, build: Build, function: Callable[..., Any]) -> Any:
    return build.call(function, call.read(0, build))


def _sizes(call: Call, build: Build) -> Any:
    """Arithmetic on sizes, if that is what a node does; else nothing."""
    one, other = call.given(0), call.given(1)
    if not (isinstance(one, Sizes) or isinstance(other, Sizes)):
        return None
    function = ON_SIZES.get(call.operator)
    if function is None or isinstance(one, Made) or isinstance(other, Made):
        return None
    rows, columns = (_entries(own) for own in (one, other))
    if rows is None or columns is None:
        return None
    length = max(len(rows), len(columns))
    if min(len(rows), len(columns)) not in (1, length):
        raise OnnxError("its operands have different lengths")
    made = [
        build.arithmetic(function, rows[i % len(rows)], columns[i % len(columns)])
        for i in range(length)
    ]
    scalar = all(own.scalar if isinstance(own, Sizes) else own.dim() == 0 for own in (one, other))
    dtype = next(own.dtype for own in (one, other) if isinstance(own, Sizes))
    made_of = _as_sizes(made, scalar=scalar)
    return replace(made_of, dtype=dtype) if isinstance(made_of, Sizes) else made_of


def _entries(value: Any) -> list[Any] | None:
    """The numbers of an operand, if they are whole."""
    if isinstance(value, Sizes):
        return list(value.entries)
    held = value.reshape(-1).tolist()
    return [int(own) for own in held] if all(own == int(own) for own in held) else None


def _as_sizes(entries: list[Any], *, scalar: bool) -> Any:
    if any(isinstance(own, Size) for own in entries):
        return Sizes(tuple(entries), scalar=scalar)
    return sizes_of(entries[0] if scalar else entries)


def _operands(call: Call, build: Build) -> tuple[Any, Any]:
    one, other = call.read(0, build), call.read(1, build)
    return number(one, other), number(other, one)


def _binary(call: Call, build: Build, function: Callable[..., Any]) -> Any:
    found = _sizes(call, build)
    if found is not None:
        return found
    one, other = _operands(call, build)
    if not isinstance(one, Tensor | Made) and function not in ON_SIZES.values():
        one = call.read(0, build)
    return build.call(function, one, other)


for _name, _function in UNARY.items():
    OPERATORS[_name] = partial(_unary, function=_function)
for _name, _function in BINARY.items():
    OPERATORS[_name] = partial(_binary, function=_function)


@rule("Div")
def div(call: Call, build: Build) -> Any:
    """A quotient; of whole numbers, cut off."""
    found = _sizes(call, build)
    if found is not None:
        return found
    one, other = _operands(call, build)
    tensor = one if isinstance(one, Tensor | Made) else other
    if tensor.dtype.is_floating_point:
        return build.call(operator.truediv, one, other)
    one = call.read(0, build)
    return build.call(torch.div, one, other, rounding_mode="trunc")


@rule("Mod")
def mod(call: Call, build: Build) -> Any:
    """A remainder, with the sign of the divisor, or of what is divided if `fmod`."""
    function = torch.fmod if call.attribute("fmod", 0) else torch.remainder
    return build.call(function, call.read(0, build), call.read(1, build))


@rule("Max Min Sum Mean")
def several(call: Call, build: Build) -> Any:
    """The greatest, least, sum or mean at each place of several tensors."""
    functions = {"Max": torch.maximum, "Min": torch.minimum}
    made = call.read(0, build)
    for place in range(1, len(call.inputs)):
        other = call.read(place, build)
        if call.operator in functions:
            made = build.call(functions[call.operator], made, other)
        else:
            made = build.call(operator.add, made, other)
    if call.operator == "Mean" and len(call.inputs) > 1:
        made = build.call(operator.truediv, made, float(len(call.inputs)))
    return made


@rule("Where")
def where(call: Call, build: Build) -> Any:
    """One of two values at each place."""
    return build.call(torch.where, *(call.read(place, build) for place in (0, 1, 2)))


@rule("Clip")
def clip(call: Call, build: Build) -> Any:
    """Not below one number nor above another."""
    if call.opset < 11:
        low, high = call.attribute("min"), call.attribute("max")
    else:
        low, high = (
            None if own is None else build.tensor(own) for own in (call.input(1), call.input(2))
        )
        low, high = (own.item() if isinstance(own, Tensor) else own for own in (low, high))
    made = call.read(0, build)
    if low is None and high is None:
        return made
    if isinstance(low, Made) or isinstance(high, Made):
        made = made if low is None else build.call(torch.maximum, made, low)
        return made if high is None else build.call(torch.minimum, made, high)
    return build.call(torch.clamp, made, low, high)


@rule("LeakyRelu Elu Celu Selu ThresholdedRelu HardSigmoid Gelu Shrink Swish")
def curves(call: Call, build: Build) -> Any:
    """Activations that have numbers of their own."""
    read, alpha, gamma = call.read(0, build), call.attribute("alpha"), call.attribute("gamma")
    match call.operator:
        case "LeakyRelu":
            return build.call(F.leaky_relu, read, 0.01 if alpha is None else alpha)
        case "Elu":
            return build.call(F.elu, read, 1.0 if alpha is None else alpha)
        case "Celu":
            return build.call(F.celu, read, 1.0 if alpha is None else alpha)
        case "Selu":
            if alpha is None and gamma is None:
                return build.call(F.selu, read)
            made = build.call(F.elu, read, 1.6732632423543772 if alpha is None else alpha)
            return build.call(operator.mul, made, 1.0507009873554805 if gamma is None else gamma)
        case "ThresholdedRelu":
            return build.call(F.threshold, read, 1.0 if alpha is None else alpha, 0.0)
        case "Gelu":
            return build.call(F.gelu, read, approximate=call.attribute("approximate", "none"))
        case "Swish":
            inner = read if alpha in (None, 1.0) else build.call(operator.mul, read, alpha)
            return build.call(operator.mul, read, build.call(torch.sigmoid, inner))
        case "HardSigmoid":
            slope, shift = 0.2 if alpha is None else alpha, call.attribute("beta", 0.5)
            made = build.call(operator.add, build.call(operator.mul, read, slope), shift)
            return build.call(torch.clamp, made, 0.0, 1.0)
        case _:
            raise OnnxError("it is not supported")


@rule("PRelu")
def prelu(call: Call, build: Build) -> Any:
    """A slope below zero: one for each channel, or as it is broadcast."""
    read, slope = call.read(0, build), call.read(1, build)
    each = isinstance(slope, Tensor) and isinstance(read, Made) and read.rank > 1
    if each and slope.numel() in (1, read.shape[1] or 0):
        along = [axis for axis, size in enumerate(slope.shape) if size > 1]
        if not along or slope.dim() - along[0] == read.rank - 1:
            layer: Any = nn.PReLU(slope.numel(), device="meta")
            layer.weight = nn.Parameter(slope.reshape(-1))
            held = {"weight": Held(build.name_of(slope), "line")}
            return build.layer(slope, layer.eval(), held, read)
    below = build.call(operator.mul, read, slope)
    return build.call(torch.where, build.call(torch.ge, read, 0), read, below)


@rule("Cast CastLike")
def cast(call: Call, build: Build) -> Any:
    """Numbers of another type; sizes stay sizes."""
    value = call.given(0)
    if isinstance(value, Sizes):
        return replace(value, dtype=dtype_of(call.attribute("to", 7)))
    if call.operator == "CastLike":
        dtype = call.read(1, build).dtype
    else:
        dtype = dtype_of(call.attribute("to"))
    return value if value.dtype == dtype else build.method("to", value, dtype)


@rule("Identity Dropout")
def same(call: Call, build: Build) -> Any:
    """What is read."""
    if call.operator == "Dropout":
        training = call.input(2)
        if training is not None and bool(build.constant(training, "training_mode")):
            raise OnnxError("it drops something")
        if len([name for name in call.outputs if name]) > 1:
            raise OnnxError("its mask is not supported")
    return call.given(0)


@rule("Softmax LogSoftmax")
def softmax(call: Call, build: Build) -> Any:
    """Over one axis; before opset 13 over all axes from one on, together."""
    read = call.read(0, build)
    function = F.softmax if call.operator == "Softmax" else F.log_softmax
    rank = rank_of(read)
    if call.opset >= 13:
        return build.call(function, read, call.attribute("axis", -1) % rank)
    axis = call.attribute("axis", 1) % rank
    if axis == rank - 1 or all(size == 1 for size in read.shape[axis + 1 :]):
        return build.call(function, read, axis)
    flat = build.call(torch.flatten, read, axis)
    made = build.call(function, flat, axis)
    return build.call(torch.reshape, made, tuple(build.shape_array(read)))
