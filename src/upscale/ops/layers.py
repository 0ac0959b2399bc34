"""Layers with parameters of their own: convolutions, linear layers, normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from upscale.flow.known import firmest
from upscale.ops.heads import within_heads
from upscale.ops.table import Call, Declined, Known, Line, Operands, Operation, Walk, register

MIXES_CHANNELS = "channels are multiplied with channels, as queries with keys: it needs them all"


def convolution(call: Call, walk: Walk) -> None:
    """Contracts axis 1 of its input with axis 1 of its weight."""
    _convolution(call, walk, row_axis=0)


def conv_transpose(call: Call, walk: Walk) -> None:
    """Contracts axis 1 of its input with axis 0 of its weight."""
    if call.arguments.get("groups") != 1:
        raise Declined("a grouped transposed convolution tells its groups apart by place")
    _convolution(call, walk, row_axis=1)


def _convolution(call: Call, walk: Walk, *, row_axis: int) -> None:
    read, weight = call.named("input", "weight")
    # A single image comes without the axis of images.
    channel = len(walk.shape(read)) - len(walk.shape(weight)) + 1
    lines = walk.lines_only_along(read, 0, channel)
    if channel and Line(read, 0) in lines:
        walk.ties(Line(call.outs[0], 0), [Line(read, 0)])
    _contraction(call, walk, channel, row_axis=row_axis, groups=call.arguments["groups"])


def linear(call: Call, walk: Walk) -> None:
    """Contracts the last axis of its input with axis 1 of its weight; other axes pass."""
    (read,) = call.named("input")
    last = len(walk.shape(read)) - 1
    for line in walk.lines(read):
        if line.axis != last:
            walk.ties(Line(call.outs[0], line.axis), [line])
    _contraction(call, walk, last, row_axis=0, groups=1)


def _contraction(call: Call, walk: Walk, axis: int, *, row_axis: int, groups: int) -> None:
    """The weight contracts one axis of the input, and its rows make that of the result."""
    read, weight, *bias = call.named("input", "weight", "bias")
    walk.reduces(
        Line(call.outs[0], axis),
        Line(read, axis),
        weight=weight,
        row_axis=row_axis,
        column_axis=1 - row_axis,
        groups=groups,
        bias=bias,
    )


def pads(call: Call) -> bool:
    """Whether a layer may read, or write, past a border."""
    padding = call.arguments.get("padding")
    if padding is None or padding == "valid":
        return False
    transposed = call.arguments.get("output_padding") is not None
    return transposed or isinstance(padding, str) or bool(np.any(padding))


def depthwise(operands: Operands) -> Known:
    """One channel in, one out: zero gives the bias; any number gives one, if nothing pads it."""
    weight, bias = operands.parameter("weight"), operands.parameter("bias")
    computed = bias is None and operands.call.arguments.get("bias") is not None
    if weight is None or computed:
        return operands.nothing
    read = operands.read.zeros if pads(operands.call) else operands.read
    sums = weight.reshape(operands.size, -1).sum(axis=1)
    numbers = read.numbers * (0.0 if operands.masked else sums)
    made = Known(numbers if bias is None else numbers + bias, np.zeros_like(read.firm))
    return firmest(read.zeros, made) if bias is None else made


register("conv1d conv2d conv3d", Operation(flow=convolution, constants=depthwise, stored=True))
register(
    "conv_transpose1d conv_transpose2d conv_transpose3d",
    Operation(flow=conv_transpose, stored=True),
)
register("linear", Operation(flow=linear, stored=True))


def product_with_weight(call: Call, walk: Walk) -> None:
    """A linear layer written the other way round: its weight is (columns, rows)."""
    bias, read, weight = call.named("self", "mat1", "mat2")
    scaled = {call.arguments.get("beta"), call.arguments.get("alpha")} - {None, 1}
    if scaled or len(walk.shape(bias)) != 1 or not walk.is_owned(weight):
        raise Declined(MIXES_CHANNELS)
    matrix_product(call, walk, read, weight, [bias])


def matrix_product(
    call: Call, walk: Walk, read: str, weight: str, bias: Sequence[str] = ()
) -> None:
    """Contracts the last axis of its input with axis 0 of a weight; other axes pass."""
    (out,) = call.outs
    last = len(walk.shape(read)) - 1
    for line in walk.lines(read):
        if line.axis != last:
            walk.ties(Line(out, line.axis), [line])
    walk.reduces(
        *(Line(out, last), Line(read, last)),
        weight=weight,
        row_axis=1,
        column_axis=0,
        groups=1,
        bias=bias,
    )


register("addmm", Operation(flow=product_with_weight, stored=True))


def embedding(call: Call, walk: Walk) -> None:
    """Looks rows up: a column of the table is a channel of what is looked up."""
    weight, indices = call.named("weight", "indices")
    if walk.has_channels(indices):
        raise Declined("channels are numbers of rows to look up")
    last = len(walk.shape(call.outs[0])) - 1
    walk.ties(Line(call.outs[0], last), [Line(weight, 1)])


register("embedding", Operation(flow=embedding, stored=True))


STATISTICS = ("running_mean", "running_var")
PARAMETERS = ("weight", "bias")


def batch_norm(call: Call, walk: Walk, *, whole: bool = False) -> None:
    """Each channel has its own statistics and parameters; `whole` if all are mixed alike."""
    for line in walk.lines_only_along(call.reads[0], 1):
        beside = [Line(value, 0) for value in call.named(*PARAMETERS, *STATISTICS)]
        walk.ties(Line(call.outs[0], 1), [line, *beside], whole=whole)


def layer_norm(call: Call, walk: Walk) -> None:
    """Normalised axes are mixed but their channels treated alike; parameters follow them."""
    read = call.reads[0]
    first = len(walk.shape(read)) - len(call.arguments["normalized_shape"])
    if read in walk.splits:
        within_heads(walk, call.outs[0], read, range(first, len(walk.shape(read))))
    for line in walk.lines(read):
        mixed = line.axis >= first
        beside = [Line(value, line.axis - first) for value in call.named(*PARAMETERS)]
        walk.ties(Line(call.outs[0], line.axis), [line, *(beside if mixed else ())], whole=mixed)


def group_norm(call: Call, walk: Walk) -> None:
    """One group mixes all channels alike; more groups are told apart by place."""
    if walk.lines_only_along(call.reads[0], 1) and call.arguments.get("num_groups") != 1:
        raise Declined("group_norm mixes channels within its groups")
    batch_norm(call, walk, whole=True)


def scaled_and_shifted(operands: Operands) -> Known:
    """With statistics of its own each channel is scaled and shifted."""
    names = (*STATISTICS, *PARAMETERS)
    mean, var, scale, shift = (operands.parameter(name) for name in names)
    computed = any(value not in operands.owned for value in operands.call.named(*names))
    if operands.call.arguments.get("training") or computed or mean is None or var is None:
        return operands.nothing
    numbers = (operands.read.numbers - mean) / np.sqrt(var + operands.call.arguments["eps"])
    if scale is not None:
        numbers = numbers * scale
    if shift is not None:
        numbers = numbers + shift
    return Known(numbers, np.zeros(operands.size, dtype=bool))


register(
    """
    batch_norm native_batch_norm _native_batch_norm_legit_no_training
    """,
    Operation(flow=batch_norm, constants=scaled_and_shifted, normalises=True, stored=True),
)
register("instance_norm", Operation(flow=batch_norm, stored=True))
register("layer_norm rms_norm", Operation(flow=layer_norm, stored=True))
register("group_norm", Operation(flow=group_norm, stored=True))
