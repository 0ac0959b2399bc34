"""Operators that move data and compute nothing."""

from __future__ import annotations

import operator
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build
from upscale.onnx_files.operators.padding import padded
from upscale.onnx_files.operators.table import Call, rank_of, rule
from upscale.onnx_files.values import Made, Size, Sizes, sizes_of, typed


@rule("Reshape")
def reshape(call: Call, build: Build) -> Any:
    """Another shape; 0 stands for the size that was there, -1 for what is left."""
    value = call.given(0)
    shape = build.numbers(call.input(1), "shape")
    if isinstance(value, Sizes):
        return replace(value, scalar=not shape)
    if not call.attribute("allowzero", 0):
        old = build.shape_array(value)
        shape = [
            old[i] if isinstance(own, int) and own == 0 else own for i, own in enumerate(shape)
        ]
    free = [i for i, own in enumerate(shape) if isinstance(own, Size)]
    if len(free) == 1 and -1 not in shape:
        shape[free[0]] = -1
    if isinstance(value, Made) and [own or -1 for own in value.shape] == shape and len(free) <= 1:
        return value  # it had that shape
    return build.call(torch.reshape, value, tuple(shape))


@rule("Flatten")
def flatten(call: Call, build: Build) -> Any:
    """A matrix: the axes before one, and the others."""
    read = call.read(0, build)
    axis, rank = call.attribute("axis", 1), rank_of(read)
    axis = axis + rank if axis < 0 else axis
    if axis == 1 and rank > 1:
        return build.call(torch.flatten, read, 1)
    sizes = build.shape_array(read)
    known = [
        int(np.prod(list(part), initial=1)) if all(isinstance(own, int) for own in part) else -1
        for part in (sizes[:axis], sizes[axis:])
    ]
    if known == [-1, -1]:
        first: Any = 1
        for own in sizes[:axis]:
            first = build.arithmetic(operator.mul, first, own)
        known[0] = first
    return build.call(torch.reshape, read, tuple(known))


@rule("Transpose")
def transpose(call: Call, build: Build) -> Any:
    """Axes in another order."""
    read = call.read(0, build)
    order = call.attribute("perm") or list(reversed(range(rank_of(read))))
    return build.call(torch.permute, read, tuple(order))


def _axes(call: Call, build: Build) -> list[int] | None:
    if call.opset < 13:
        found: list[int] | None = call.attribute("axes")
        return found
    return None if call.input(1) is None else build.fixed(call.input(1), "axes")


@rule("Squeeze")
def squeeze(call: Call, build: Build) -> Any:
    """Axes of one go."""
    value, axes = call.given(0), _axes(call, build)
    if isinstance(value, Sizes):
        return replace(value, scalar=True) if len(value.entries) == 1 else value
    if axes is None:
        shape = value.shape
        axes = [axis for axis, size in enumerate(shape) if size == 1]
    return build.call(torch.squeeze, value, tuple(axis % rank_of(value) for axis in axes))


@rule("Unsqueeze")
def unsqueeze(call: Call, build: Build) -> Any:
    """New axes of one."""
    value, axes = call.given(0), _axes(call, build) or []
    if isinstance(value, Sizes):
        if not value.scalar:
            value = build.tensor(value)
        else:
            return replace(value, scalar=False)
    rank = rank_of(value) + len(axes)
    for axis in sorted(own % rank for own in axes):
        value = build.call(torch.unsqueeze, value, axis)
    return value


@rule("Concat")
def concat(call: Call, build: Build) -> Any:
    """Several tensors side by side."""
    values = [own for own in call.inputs if own is not None]
    if any(isinstance(own, Sizes) for own in values) and not any(
        isinstance(own, Made) for own in values
    ):
        entries: list[Any] = []
        for own in values:
            entries += build.numbers(own, "parts")
        dtype = next(own.dtype for own in values if isinstance(own, Sizes))
        return Sizes(tuple(entries), dtype=dtype)
    return build.call(torch.cat, [build.tensor(own) for own in values], call.attribute("axis"))


@rule("Split")
def split(call: Call, build: Build) -> Any:
    """Parts along an axis: of given sizes, or equal ones."""
    read = call.read(0, build)
    axis = call.attribute("axis", 0) % rank_of(read)
    sizes = call.attribute("split")
    if sizes is None and call.input(1) is not None:
        sizes = build.fixed(call.input(1), "split")
    count = call.attribute("num_outputs", len(call.outputs))
    if sizes is None:
        length = read.shape[axis]
        if length is None:
            raise OnnxError("it splits an axis whose size is free")
        each = -(-length // count)
        sizes = [min(each, length - each * i) for i in range(count)]
    return list(build.call(torch.split, read, tuple(sizes), axis))


@rule("Slice")
def cut(call: Call, build: Build) -> Any:
    """Part of some axes."""
    value = call.given(0)
    if call.opset < 10:
        starts, ends, axes = (call.attribute(name) for name in ("starts", "ends", "axes"))
        steps = None
    else:
        starts, ends = (build.numbers(call.input(place), "bounds") for place in (1, 2))
        axes, steps = (
            None if call.input(place) is None else build.fixed(call.input(place), "axes and steps")
            for place in (3, 4)
        )
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if isinstance(value, Sizes):
        whole = slice(*(_bound(own) for own in (starts[0], ends[0], steps[0])))
        return typed(sizes_of(value.array()[whole]), value.dtype)
    rank = rank_of(value)
    index: list[Any] = [slice(None)] * rank
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= rank
        if step < 0:
            if step != -1 or (
                start not in (-1, sys.maxsize) and (start != (value.shape[axis] or 0) - 1)
            ):
                raise OnnxError("a step below zero is supported for a whole axis alone")
            value = build.call(torch.flip, value, (axis,))
            continue
        bounds = (_bound(start), _bound(end), step)
        if bounds[0] == 0 and bounds[1] is None and step == 1:
            continue
        index[axis] = slice(*bounds)
    while index and index[-1] == slice(None):
        index.pop()
    return build.call(operator.getitem, value, tuple(index)) if index else value


def _bound(number: Any) -> Any:
    """A bound of a slice; one beyond all sizes is none."""
    if not isinstance(number, int) or -(2**31) < number < 2**31 - 1:
        return number
    return None if number > 0 else 0


@rule("Gather")
def gather(call: Call, build: Build) -> Any:
    """The places of an axis that numbers name."""
    value, places = call.given(0), call.given(1)
    if isinstance(value, Sizes):
        held = build.constant(places, "indices")
        return typed(sizes_of(value.array()[held.numpy()]), value.dtype)
    read, places = build.tensor(value), build.tensor(places)
    axis = call.attribute("axis", 0) % rank_of(read)
    if isinstance(places, Tensor):
        length = read.shape[axis]
        if length is not None:
            places = torch.where(places < 0, places + length, places)
        if places.dim() == 0:
            return build.call(torch.select, read, axis, int(places))
        if bool((places < 0).any()):
            raise OnnxError("it counts from the end of an axis whose size is free")
    elif isinstance(read, Tensor) and read.dim() == 2 and axis == 0 and read.is_floating_point():
        return build.call(F.embedding, build.method("to", places, torch.int64), read)
    else:
        places = build.method("to", places, torch.int64)
    if rank_of(places) == 1:
        return build.call(torch.index_select, read, axis, places)
    flat = build.call(torch.reshape, places, (-1,))
    found = build.call(torch.index_select, read, axis, flat)
    shape, inner = build.shape_array(read), build.shape_array(places)
    return build.call(torch.reshape, found, (*shape[:axis], *inner, *shape[axis + 1 :]))


@rule("GatherElements")
def gather_elements(call: Call, build: Build) -> Any:
    """At each place the number that stands where another number says."""
    read, places = call.read(0, build), call.read(1, build)
    axis = call.attribute("axis", 0) % rank_of(read)
    return build.call(torch.gather, read, axis, places)


@rule("Expand")
def expand(call: Call, build: Build) -> Any:
    """Repeated along axes of one, without a copy."""
    read, shape = call.read(0, build), build.numbers(call.input(1), "shape")
    old = build.shape_array(read)
    lacking = len(old) - len(shape)
    shape = [*[1] * lacking, *shape]
    new = len(shape) - len(old)
    wanted = [
        own if i < new or not (isinstance(own, int) and own == 1) else -1
        for i, own in enumerate(shape)
    ]
    return build.method("expand", read, *wanted)


@rule("Tile")
def tile(call: Call, build: Build) -> Any:
    """Copies side by side."""
    return build.call(
        torch.tile, call.read(0, build), tuple(build.numbers(call.input(1), "repeats"))
    )


@rule("Pad")
def pad(call: Call, build: Build) -> Any:
    """More before and after axes: a number, the border, or its reflection."""
    read = call.read(0, build)
    mode = call.attribute("mode", "constant")
    value: Any = call.attribute("value", 0.0)
    if call.opset < 11:
        pads = call.attribute("pads")
    else:
        pads = build.numbers(call.input(1), "pads")
        held = call.input(2)
        value = 0.0 if held is None else build.constant(held, "value").item()
    rank = rank_of(read)
    if call.input(3) is not None:
        axes = [own % rank for own in build.fixed(call.input(3), "axes")]
        whole: list[Any] = [0] * 2 * rank
        for i, axis in enumerate(axes):
            whole[axis], whole[axis + rank] = pads[i], pads[i + len(axes)]
        pads = whole
    before, after = list(pads[:rank]), list(pads[rank:])
    if mode == "constant":
        return padded(build, read, before, after, value)
    modes = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}
    spatial = next((i for i in range(rank) if before[i] != 0 or after[i] != 0), rank)
    if spatial == rank:
        return read
    if spatial < 2 or rank > 5 or mode not in modes:
        raise OnnxError(f"mode {mode!r} is supported over axes of space alone")
    return build.call(F.pad, read, _all_axes(before[2:], after[2:]), modes[mode])


def _all_axes(before: list[Any], after: list[Any]) -> tuple[Any, ...]:
    pairs = zip(reversed(before), reversed(after), strict=True)
    return tuple(own for pair in pairs for own in pair)


@rule("DepthToSpace")
def depth_to_space(call: Call, build: Build) -> Any:
    """Blocks of pixels out of channels."""
    read, block = call.read(0, build), call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "CRD":
        return build.call(F.pixel_shuffle, read, block)
    count, channels, height, width = build.shape_array(read)
    inner = channels // block**2
    grid = build.call(torch.reshape, read, (count, block, block, inner, height, width))
    grid = build.call(torch.permute, grid, (0, 3, 4, 1, 5, 2))
    tall, wide = (build.arithmetic(operator.mul, own, block) for own in (height, width))
    return build.call(torch.reshape, grid, (count, inner, tall, wide))


@rule("SpaceToDepth")
def space_to_depth(call: Call, build: Build) -> Any:
    """Channels out of blocks of pixels."""
    read, block = call.read(0, build), call.attribute("blocksize")
    count, channels, height, width = build.shape_array(read)
    low, narrow = (build.arithmetic(operator.floordiv, own, block) for own in (height, width))
    grid = build.call(torch.reshape, read, (count, channels, low, block, narrow, block))
    grid = build.call(torch.permute, grid, (0, 3, 5, 1, 2, 4))
    return build.call(torch.reshape, grid, (count, channels * block**2, low, narrow))
