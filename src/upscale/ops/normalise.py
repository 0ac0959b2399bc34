"""Normalisations: over each channel's own places, or over channels together."""

from __future__ import annotations

import numpy as np

from upscale.ops.table import Call, Declined, Known, Line, Operands, Operation, Walk, register

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
    "batch_norm native_batch_norm",
    Operation(flow=batch_norm, constants=scaled_and_shifted, normalises=True, stored=True),
)
register("instance_norm", Operation(flow=batch_norm, stored=True))
register("layer_norm rms_norm", Operation(flow=layer_norm, stored=True))
register("group_norm", Operation(flow=group_norm, stored=True))
