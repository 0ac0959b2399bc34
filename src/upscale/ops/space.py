"""Operations within each channel, over the axes of space: pooling, resizing, padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from upscale.ops.operands import same, zeros_stay
from upscale.ops.table import Call, Declined, Known, Line, Operands, Operation, Walk, register


def over_space(call: Call, walk: Walk) -> None:
    """Works within each channel, over the trailing spatial axes."""
    spatial = next(n for n in (1, 2, 3) if f"{n}d" in call.op)
    _channels_pass(call, walk, touched=range(-spatial, 0))


def pad(call: Call, walk: Walk) -> None:
    """Padding space leaves channels alone; padding a line with zeros adds constant channels."""
    read = call.reads[0]
    amounts = list(call.arguments.get("pad") or call.arguments["padding"])
    touched = [-1 - i // 2 for i, amount in enumerate(amounts) if amount]
    rank = len(walk.shape(read))
    grown = [line for line in walk.lines(read) if line.axis - rank in touched]
    if not grown:
        _channels_pass(call, walk, touched=touched)
    elif len(set(touched)) == 1 and call.arguments.get("mode") in (None, "constant"):
        if call.arguments.get("value"):
            raise Declined("pads channels with a value other than zero")
        (line,) = grown
        where = 2 * (-1 - (line.axis - rank))
        _grow(call, walk, line, amounts[where], amounts[where + 1])
    else:
        raise Declined("pads channels and space at once")


def _grow(call: Call, walk: Walk, line: Line, before: int, after: int) -> None:
    if min(before, after) < 0:
        raise Declined("crops channels by negative padding")
    size = walk.shape(line.value)[line.axis]
    position = np.pad(np.arange(size), (before, after), constant_values=-1)
    operand = np.minimum(position, 0)
    walk.selects(Line(call.outs[0], line.axis), [line], operand, position, joined=True)


def _channels_pass(call: Call, walk: Walk, touched: Sequence[int]) -> None:
    """Lines stay as they are, along axes that are not touched; counted from the last, as -1."""
    read = call.reads[0]
    for line in walk.lines(read):
        if line.axis - len(walk.shape(read)) in touched:
            raise Declined(f"{call.op} works along the channels")
        for out in call.outs:
            walk.ties(Line(out, line.axis), [line])


def average(operands: Operands) -> Known:
    """A mean or a maximum of one number is that number; where it was found is not."""
    made = operands.relation.out
    first = made is not None and made.value == operands.call.outs[0]
    return operands.read if first else operands.nothing


def avg_pool(operands: Operands) -> Known:
    """Padding may count, as zeros; then only zeros stay."""
    call = operands.call
    padded = np.any(call.arguments.get("padding")) or call.arguments.get("ceil_mode")
    divided = call.arguments.get("divisor_override")
    return zeros_stay(operands) if padded or divided else operands.read


def padded(operands: Operands) -> Known:
    """What is padded with its own number stays constant."""
    if operands.call.arguments.get("mode") not in (None, "constant"):
        return operands.read
    value = float(operands.call.arguments.get("value") or 0)
    return operands.read.only(operands.read.numbers == value)


register(
    """
    max_pool1d max_pool2d max_pool3d max_pool2d_with_indices adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d
    upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    """,
    Operation(flow=over_space, constants=average, stored=True),
)
register(
    """
    max_pool1d_with_indices max_pool3d_with_indices _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
    _upsample_bicubic2d_aa
    """,
    Operation(flow=over_space, constants=average),
)
register(
    "avg_pool1d avg_pool2d avg_pool3d", Operation(flow=over_space, constants=avg_pool, stored=True)
)
register("pad constant_pad_nd", Operation(flow=pad, constants=padded, stored=True))
register(
    "reflection_pad1d reflection_pad2d replication_pad2d",
    Operation(flow=pad, constants=same, stored=True),
)
