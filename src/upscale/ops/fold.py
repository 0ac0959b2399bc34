"""Operations in which several channels of one tensor meet: gated halves, pixels from channels."""

from __future__ import annotations

import numpy as np

from upscale.flow.known import agreed
from upscale.flow.relations import Fold
from upscale.ops.table import Call, Known, Line, Operands, Operation, Walk, register


def glu(call: Call, walk: Walk) -> None:
    """The two halves of a line meet."""
    read = call.reads[0]
    dim = call.arguments["dim"] % len(walk.shape(read))
    for line in walk.lines(read):
        out = Line(call.outs[0], line.axis)
        if line.axis != dim:
            walk.ties(out, [line])
        else:
            half = np.arange(walk.shape(read)[dim] // 2)
            walk.folds(out, line, np.stack((half, half + len(half)), axis=1), nested=False)


def pixel_shuffle(call: Call, walk: Walk) -> None:
    """Every r² neighbouring channels become one."""
    read = call.reads[0]
    axis, square = len(walk.shape(read)) - 3, call.arguments["upscale_factor"] ** 2
    for line in walk.lines_only_along(read, axis):
        table = np.arange(walk.shape(read)[axis]).reshape(-1, square)
        walk.folds(Line(call.outs[0], axis), line, table, nested=True)


def gated(operands: Operands) -> Known:
    """A gate does not open zeros."""
    zeros = operands.read.zeros
    relation = operands.relation
    return zeros.at(relation.table[:, 0]) if isinstance(relation, Fold) else zeros


def all_parts(operands: Operands) -> Known:
    """Channels that become one agree, or nothing is known."""
    assert isinstance(operands.relation, Fold)
    return agreed([operands.read.at(part) for part in operands.relation.table.T])


register("glu", Operation(flow=glu, constants=gated, stored=True))
register("pixel_shuffle", Operation(flow=pixel_shuffle, constants=all_parts, stored=True))
