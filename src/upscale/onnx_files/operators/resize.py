"""Resizing, in all its modes.

Where torch has the mode itself it is asked; elsewhere each axis is resized by a table that is made
now, which needs the size of what is resized to be fixed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build
from upscale.onnx_files.operators.table import Call, rank_of, rule
from upscale.onnx_files.values import Size


@rule("Resize Upsample")
def resize(call: Call, build: Build) -> Any:
    """An image of another size, its numbers taken from near each place."""
    read = call.read(0, build)
    rank = rank_of(read)
    scales, sizes = _asked(call, build, rank, read)
    mode = call.attribute("mode", "nearest")
    if call.operator == "Upsample" or call.opset < 11:
        where, near = "asymmetric", "floor"
    else:
        where = call.attribute("coordinate_transformation_mode", "half_pixel")
        near = call.attribute("nearest_mode", "round_prefer_floor")
    moved = [
        axis
        for axis in range(rank)
        if (
            sizes[axis] != read.shape[axis] or isinstance(sizes[axis], Size)
            if sizes
            else scales[axis] != 1
        )
    ]
    if not moved:
        return read
    if moved[0] < 2:
        raise OnnxError("it resizes channels or the batch")
    if call.attribute("antialias", 0) or where == "tf_crop_and_resize":
        raise OnnxError("antialias and tf_crop_and_resize are not supported")
    own = _by_torch(call, mode, where, near, scales, sizes, rank)
    if own is not None:
        asked: dict[str, Any] = (
            {"size": tuple(sizes[2:])} if sizes else {"scale_factor": tuple(scales[2:])}
        )
        return build.call(F.interpolate, read, **asked, **own)
    for axis in moved:
        length = read.shape[axis]
        wanted = (
            sizes[axis] if sizes else None if length is None else math.floor(length * scales[axis])
        )
        if length is None or not isinstance(wanted, int):
            raise OnnxError(f"mode {mode}, {where}, {near} needs an image of a fixed size")
        scale = scales[axis] if scales else wanted / length
        read = _along(
            build, read, axis, _places(where, length, wanted, scale), length, call, mode, near
        )
    return read


def _asked(call: Call, build: Build, rank: int, read: Any) -> tuple[list[float], list[Any]]:
    """The scales or the sizes that are asked for, one for each axis."""
    if call.operator == "Upsample" and call.opset < 9:
        return list(call.attribute("scales")), []
    place = 1 if call.operator == "Upsample" or call.opset < 11 else 2
    scales, sizes = call.input(place), call.input(3) if place == 2 else None
    axes = call.attribute("axes") or list(range(rank))
    if sizes is not None:
        call.only("keep_aspect_ratio_policy", "stretch")
        whole: list[Any] = list(build.shape_array(read))
        for axis, own in zip(axes, build.numbers(sizes, "sizes"), strict=True):
            whole[axis % rank] = own
        return [], whole
    factors = [1.0] * rank
    given = build.constant(scales, "scales").reshape(-1).tolist()
    for axis, factor in zip(axes, given, strict=True):
        factors[axis % rank] = factor
    return factors, []


def _by_torch(
    call: Call, mode: str, where: str, near: str, scales: list[float], sizes: list[Any], rank: int
) -> dict[str, Any] | None:
    """How torch is told to do the same, if it can."""
    whole = bool(scales) and all(own == int(own) for own in scales)
    if mode == "nearest":
        floors = where == "asymmetric" and (
            near == "floor" or (whole and near == "round_prefer_floor" and max(scales) <= 2)
        )
        # Between whole multiples no place is as near to two others as to one: (i + ½) / s - ½.
        middle = (
            where in ("half_pixel", "pytorch_half_pixel") and whole and near.startswith("round")
        )
        return {"mode": "nearest"} if floors or middle else None
    kinds = {"linear": {3: "linear", 4: "bilinear", 5: "trilinear"}, "cubic": {4: "bicubic"}}
    name = kinds.get(mode, {}).get(rank)
    if name is None or (mode == "cubic" and call.attribute("cubic_coeff_a", -0.75) != -0.75):
        return None
    if call.attribute("exclude_outside", 0):
        return None
    if where == "align_corners":
        return {"mode": name, "align_corners": True}
    if where in ("half_pixel", "pytorch_half_pixel"):
        return {"mode": name, "align_corners": False}
    return None


def _places(where: str, length: int, wanted: int, scale: float) -> Any:
    """Where each place of the result lies among those that are read."""
    i = np.arange(wanted, dtype=np.float64)
    match where:
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if wanted > 1 else np.zeros(1)
        case "half_pixel_symmetric":
            shift = length / 2 * (1 - wanted / (scale * length))
            return shift + (i + 0.5) / scale - 0.5
        case "asymmetric":
            return i / scale
        case "align_corners":
            return i * (length - 1) / (wanted - 1) if wanted > 1 else np.zeros(1)
        case "tf_half_pixel_for_nn":
            return (i + 0.5) / scale
    raise OnnxError(f"coordinate_transformation_mode {where!r} is not supported")


def _along(
    build: Build, read: Any, axis: int, places: Any, length: int, call: Call, mode: str, near: str
) -> Any:
    """One axis resized: places taken, or sums of those near each."""
    if mode == "nearest":
        rounding: dict[str, Any] = {
            "round_prefer_floor": lambda x: np.ceil(x - 0.5),
            "round_prefer_ceil": lambda x: np.floor(x + 0.5),
            "floor": np.floor,
            "ceil": np.ceil,
        }
        taken = np.clip(rounding[near](places), 0, length - 1).astype(np.int64)
        return build.call(torch.index_select, read, axis, torch.from_numpy(taken))
    table = _table(places, length, call, mode)
    moved = build.call(torch.matmul, build.call(torch.swapaxes, read, axis, -1), table)
    return build.call(torch.swapaxes, moved, axis, -1)


def _table(places: Any, length: int, call: Call, mode: str) -> Tensor:
    """How much of each place read each place of the result has: a matrix."""
    low = np.floor(places).astype(int)
    share = places - low
    if mode == "linear":
        weights = {0: 1 - share, 1: share}
    else:
        a = call.attribute("cubic_coeff_a", -0.75)

        def inner(x: Any) -> Any:
            return ((a + 2) * x - (a + 3)) * x * x + 1

        def outer(x: Any) -> Any:
            return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

        weights = {-1: outer(share + 1), 0: inner(share), 1: inner(1 - share), 2: outer(2 - share)}
    table = np.zeros((length, len(places)))
    columns, outside = np.arange(len(places)), bool(call.attribute("exclude_outside", 0))
    for shift, weight in weights.items():
        at = low + shift
        kept = ((at >= 0) & (at < length)) | (not outside)
        np.add.at(table, (np.clip(at, 0, length - 1), columns), weight * kept)
    if outside:
        table /= table.sum(axis=0, keepdims=True)
    return torch.from_numpy(table).float()
