"""Reductions over axes, and operations along one axis that keep it."""

from __future__ import annotations

from upscale.ops.heads import within_heads
from upscale.ops.operands import same, zeros_stay
from upscale.ops.table import Call, Declined, Line, Operation, Walk, register


def reduction(call: Call, walk: Walk) -> None:
    """Over space a channel stays itself; over channels all are needed, in any order."""
    read = call.reads[0]
    rank = len(walk.shape(read))
    dims = call.arguments.get("dim")
    dims = range(rank) if dims is None or dims == [] else dims
    touched = {d % rank for d in ([dims] if isinstance(dims, int) else dims)} if rank else set()
    keep = bool(call.arguments.get("keepdim"))
    if read in walk.splits:
        within_heads(walk, call.outs[0], read, touched)
    for line in walk.lines(read):
        if line.axis in touched:
            walk.absorbs(line)
        else:
            gone = 0 if keep else sum(d < line.axis for d in touched)
            walk.ties(Line(call.outs[0], line.axis - gone), [line])


def softmax(call: Call, walk: Walk) -> None:
    """A softmax over channels mixes them, but treats them alike."""
    for line, along in _lines_and_axis(call, walk):
        walk.ties(Line(call.outs[0], line.axis), [line], whole=along)


def in_order(call: Call, walk: Walk) -> None:
    """Depends on the order along its axis, so that must not be the channels'."""
    for line, along in _lines_and_axis(call, walk):
        if along:
            raise Declined(f"{call.op} along channels depends on their order")
        for out in call.outs:
            walk.ties(Line(out, line.axis), [line])


def _lines_and_axis(call: Call, walk: Walk) -> list[tuple[Line, bool]]:
    """Every line read, and whether the operation works along it."""
    read = call.reads[0]
    dim = call.arguments["dim"] % len(walk.shape(read))
    return [(line, line.axis == dim) for line in walk.lines(read)]


register("mean amax amin", Operation(flow=reduction, constants=same, stored=True))
register("sum", Operation(flow=reduction, constants=zeros_stay, stored=True))
register("var std norm prod", Operation(flow=reduction, stored=True))
register("linalg_vector_norm", Operation(flow=reduction))
register("softmax", Operation(flow=softmax, attends=True, stored=True))
register("log_softmax _softmax _log_softmax", Operation(flow=softmax, stored=True))
register("cumsum sort argsort", Operation(flow=in_order, stored=True))
