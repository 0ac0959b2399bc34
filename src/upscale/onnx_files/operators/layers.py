"""Layers with weights: convolutions, dense layers, normalisations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from upscale.errors import OnnxError
from upscale.onnx_files.build import Build, Held
from upscale.onnx_files.operators.padding import padded, pads_of
from upscale.onnx_files.operators.table import Call, rank_of, rule
from upscale.onnx_files.values import Made

CONVOLUTIONS: dict[int, Any] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
TRANSPOSED: dict[int, Any] = {3: nn.ConvTranspose1d, 4: nn.ConvTranspose2d, 5: nn.ConvTranspose3d}
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
FUNCTIONS: dict[int, Any] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


@rule("Conv")
def conv(call: Call, build: Build) -> Any:
    """A convolution; what it pads on one side alone is padded before."""
    read, weight, bias = call.read(0, build), call.read(1, build), call.input(2)
    if rank_of(weight) not in CONVOLUTIONS or rank_of(read) != rank_of(weight):
        raise OnnxError("only over one to three axes of space")
    spatial = rank_of(weight) - 2
    kernel = weight.shape[2:]
    strides = tuple(call.attribute("strides", [1] * spatial))
    dilations = tuple(call.attribute("dilations", [1] * spatial))
    groups = call.attribute("group", 1)
    before, after = pads_of(call, build, read, kernel, strides, dilations)
    padding = (0,) * spatial
    if before == after and all(isinstance(own, int) for own in before):
        padding = tuple(before)
    else:
        read = padded(build, read, before, after)
    if not (isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))):
        return build.call(
            FUNCTIONS[spatial + 2], read, weight, bias, strides, padding, dilations, groups
        )
    if isinstance(read, Tensor):
        return build.call(
            FUNCTIONS[spatial + 2], read, weight, bias, strides, padding, dilations, groups
        )
    columns = weight.shape[1] * groups
    layer = CONVOLUTIONS[spatial + 2](
        columns, len(weight), kernel, strides, padding, dilations, groups, bias is not None,
        device="meta",
    )  # fmt: skip
    return _with_weights(build, layer, weight, bias, read)


@rule("ConvTranspose")
def conv_transpose(call: Call, build: Build) -> Any:
    """A transposed convolution; padding that differs by side is cropped behind it."""
    read, bias = call.read(0, build), call.input(2)
    weight = build.constant(call.given(1), "weight")
    spatial = rank_of(weight) - 2
    strides = tuple(call.attribute("strides", [1] * spatial))
    dilations = tuple(call.attribute("dilations", [1] * spatial))
    extra = list(call.attribute("output_padding", [0] * spatial))
    pads = list(call.attribute("pads", [0] * 2 * spatial))
    kernel, groups = weight.shape[2:], call.attribute("group", 1)
    wanted, auto = call.attribute("output_shape"), call.attribute("auto_pad", "NOTSET")
    if wanted is not None or auto.startswith("SAME"):
        pads = []
        for axis in range(spatial):
            length = read.shape[axis + 2]
            if length is None:
                raise OnnxError("its output_shape needs images of a fixed size")
            whole = (
                (length - 1) * strides[axis] + extra[axis] + (kernel[axis] - 1) * dilations[axis]
            )
            to = wanted[-spatial:][axis] if wanted is not None else length * strides[axis]
            total = whole + 1 - to
            if total < 0:
                extra[axis], total = extra[axis] - total, 0
            pads.append((total // 2, total - total // 2))
        swap = auto != "SAME_UPPER"
        before = [b if swap and wanted is not None else a for a, b in pads]
        after = [a if swap and wanted is not None else b for a, b in pads]
    else:
        before, after = pads[:spatial], pads[spatial:]
    crop = before != after
    layer = TRANSPOSED[spatial + 2](
        weight.shape[0], weight.shape[1] * groups, kernel, strides,
        (0,) * spatial if crop else tuple(before), tuple(extra), groups, bias is not None,
        dilations, device="meta",
    )  # fmt: skip
    made = _with_weights(
        build, layer, weight, build.constant(bias, "bias") if bias is not None else None, read
    )
    return padded(build, made, [-own for own in before], [-own for own in after]) if crop else made


@rule("Gemm")
def gemm(call: Call, build: Build) -> Any:
    """A dense layer, if its weight is constant; else a product of two matrices."""
    read, weight, bias = call.read(0, build), call.read(1, build), call.input(2)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    if call.attribute("transA", 0):
        read = build.call(torch.t, read)
    plain = alpha == 1.0 and (bias is None or beta == 1.0)
    across = bool(call.attribute("transB", 0))
    if isinstance(read, Made) and isinstance(weight, Tensor):
        columns = weight if across else weight.t().contiguous()
        own = bias if plain and isinstance(bias, Tensor) and _is_line(bias, len(columns)) else None
        layer = nn.Linear(columns.shape[1], len(columns), own is not None, device="meta")
        made = _with_weights(build, layer, weight, own, read, None if across else columns)
        if own is not None:
            return made
    else:
        made = build.call(torch.matmul, read, build.call(torch.t, weight) if across else weight)
    if alpha != 1.0:
        made = build.call(torch.mul, made, alpha)
    if bias is None:
        return made
    added = build.tensor(bias)
    return build.call(torch.add, made, added if beta == 1.0 else build.call(torch.mul, added, beta))


@rule("MatMul")
def matmul(call: Call, build: Build) -> Any:
    """A dense layer, if its second factor is a constant matrix."""
    read, weight = call.read(0, build), call.read(1, build)
    if isinstance(read, Made) and isinstance(weight, Tensor) and weight.dim() == 2:
        columns = weight.t().contiguous()
        layer = nn.Linear(columns.shape[1], len(columns), bias=False, device="meta")
        return _with_weights(build, layer, weight, None, read, columns)
    return build.call(torch.matmul, read, weight)


@rule("BatchNormalization")
def batch_norm(call: Call, build: Build) -> Any:
    """Each channel scaled and shifted, by statistics of the file."""
    if call.attribute("training_mode", 0) or call.attribute("spatial", 1) == 0:
        raise OnnxError("only with the statistics of the file")
    read, epsilon = call.read(0, build), call.attribute("epsilon", 1e-5)
    scale, shift, mean, variance = (call.read(place, build) for place in (1, 2, 3, 4))
    owned = all(isinstance(own, Tensor) for own in (scale, shift, mean, variance))
    if not owned or isinstance(read, Tensor) or read.rank not in NORMS:
        return build.call(F.batch_norm, read, mean, variance, scale, shift, False, 0.0, epsilon)
    layer = NORMS[read.rank](len(scale), eps=epsilon, device="meta")
    layer.weight, layer.bias = nn.Parameter(scale), nn.Parameter(shift)
    layer.running_mean, layer.running_var, layer.num_batches_tracked = mean, variance, None
    names = ("weight", scale), ("bias", shift), ("running_mean", mean), ("running_var", variance)
    held = {name: Held(build.name_of(own)) for name, own in names}
    return build.layer(scale, layer.eval(), held, read)


@rule("InstanceNormalization")
def instance_norm(call: Call, build: Build) -> Any:
    """Each channel of each image by its own mean and variance."""
    read, scale, shift = (call.read(place, build) for place in (0, 1, 2))
    epsilon = call.attribute("epsilon", 1e-5)
    return build.call(F.instance_norm, read, None, None, scale, shift, True, 0.0, epsilon)


@rule("LayerNormalization")
def layer_norm(call: Call, build: Build) -> Any:
    """The last axes by their mean and variance."""
    if len([name for name in call.outputs if name]) > 1:
        raise OnnxError("only its first output is supported")
    read, scale = call.read(0, build), call.read(1, build)
    shift = build.tensor(call.given(2)) if call.input(2) is not None else None
    axis = call.attribute("axis", -1) % rank_of(read)
    shape = tuple(read.shape[axis:])
    if None in shape:
        raise OnnxError("it normalises axes whose size is free")
    for own in (scale, shift):
        if own is not None and tuple(own.shape) != shape:
            raise OnnxError("its scale has another shape than what it normalises")
    return build.call(F.layer_norm, read, shape, scale, shift, call.attribute("epsilon", 1e-5))


@rule("GroupNormalization")
def group_norm(call: Call, build: Build) -> Any:
    """Groups of channels by their mean and variance; before opset 21 one scale for each group."""
    read, groups = call.read(0, build), call.attribute("num_groups")
    scale, shift = (build.constant(call.given(place), "scale") for place in (1, 2))
    channels = read.shape[1]
    if channels is None:
        raise OnnxError("its number of channels is free")
    if len(scale) != channels:
        repeats = channels // groups
        scale, shift = (build.call(torch.repeat_interleave, own, repeats) for own in (scale, shift))
    epsilon = call.attribute("epsilon", 1e-5)
    return build.call(F.group_norm, read, groups, scale, shift, epsilon)


@rule("LRN")
def lrn(call: Call, build: Build) -> Any:
    """Each channel by the squares of its neighbours."""
    size, bias = call.attribute("size"), call.attribute("bias", 1.0)
    alpha, beta = call.attribute("alpha", 1e-4), call.attribute("beta", 0.75)
    return build.call(F.local_response_norm, call.read(0, build), size, alpha, beta, bias)


def _with_weights(
    build: Build, layer: Any, weight: Tensor, bias: Tensor | None, read: Any, turned: Any = None
) -> Any:
    """A call of a layer that has the given constants; `turned` is the weight as it needs it."""
    layer.weight = nn.Parameter(weight if turned is None else turned)
    held = {"weight": Held(build.name_of(weight), "same" if turned is None else "transposed")}
    if bias is not None:
        layer.bias = nn.Parameter(bias.reshape(-1))
        held["bias"] = Held(build.name_of(bias), "same" if bias.dim() == 1 else "line")
    if isinstance(read, Tensor):
        return layer(read).detach()
    return build.layer(weight, layer.eval(), held, read)


def _is_line(bias: Tensor, size: int) -> bool:
    return bias.numel() == size == (bias.shape[-1] if bias.dim() else 0)
