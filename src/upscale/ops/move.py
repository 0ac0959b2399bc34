"""Operations that move data and compute nothing: reshapes, permutations, joins and cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from upscale.channels import Parameter, Positions
from upscale.flow import spread as spreading
from upscale.flow.spread import (
    expand_spread,
    numbers_after,
    permute_spread,
    pick_spread,
    repeat_spread,
    reshape_spread,
    unsqueeze_spread,
)
from upscale.ops.heads import by_heads
from upscale.ops.operands import same
from upscale.ops.pointwise import pointwise
from upscale.ops.table import Call, Declined, FlowRule, Line, Operation, Walk, register

# Like a flow rule, of the one value read, whose channels are spread.
SpreadRule = Callable[[Call, Walk, str], None]


def movement(lines: FlowRule, spread: SpreadRule | None = None) -> FlowRule:
    """A rule for what only moves data: one way for plain lines, one for spread channels."""

    def moves(call: Call, walk: Walk) -> None:
        if call.arguments.get("dtype") is not None:
            raise Declined("it reads the bits of another type")
        value = walk.spread_alone(call)
        if value is None:
            lines(call, walk)
        elif spread is None:
            raise Declined(spreading.SPREAD)
        else:
            spread(call, walk, value)

    return moves


def rearranged(call: Call, walk: Walk, *, splits: bool = False) -> None:
    """Axes change places or merge; one that `splits` may also cut a line into several axes."""
    for line, there, position in _landings(call, walk, splits=splits):
        if np.array_equal(position, np.arange(walk.shape(line.value)[line.axis])):
            walk.ties(there, [line])
        elif there.axis == 0 < line.axis:
            raise Declined("it merges channels with the batch")
        else:
            walk.carries(there, line, position)


def reshaped(call: Call, walk: Walk) -> None:
    """Axes merge, or are cut into several."""
    rearranged(call, walk, splits=True)


def unflattened(call: Call, walk: Walk) -> None:
    """A line is cut into several axes, whose sizes stand in the call, also if all but one are 1."""
    (read,), (out,) = call.reads, call.outs
    line = Line(read, call.arguments["dim"] % len(walk.shape(read)))
    heads = spreading.split(line, walk.shape(read), walk.shape(out))
    if line not in walk.lines(read):
        reshaped(call, walk)
    elif heads is None or len(walk.lines(read)) > 1 or walk.shape(read)[line.axis] == 1:
        raise Declined(f"{call.op} spreads channels over several axes")
    else:
        spreading.becomes_spread(walk, out, heads)


def viewed(call: Call, walk: Walk) -> None:
    """A reshape: the numbers stand in expanded memory, which a view refuses."""
    reshaped(replace(call, overload=torch.ops.aten.reshape.default), walk)


def counted(call: Call, walk: Walk, *, joined: bool) -> None:
    """Channels are counted, by groups or by copies: fewer of them would land elsewhere."""
    for line, there, position in _landings(call, walk):
        walk.takes(there, line, position, joined=joined)


def interleaved(call: Call, walk: Walk) -> None:
    """Every place of one axis is repeated, each equally often."""
    if not isinstance(call.arguments.get("repeats"), int) or call.arguments.get("dim") is None:
        if any(map(walk.has_channels, call.reads)):
            raise Declined("how often each is repeated is computed, or it is over all axes at once")
        return
    for line, there, position in _landings(call, walk):
        if np.array_equal(position, np.arange(walk.shape(line.value)[line.axis])):
            walk.ties(there, [line])
        else:
            walk.takes(there, line, position, joined=True)


def expanded(call: Call, walk: Walk) -> None:
    """A parameter's own axes are followed from here: a class token has the stream's order."""
    read, out = call.reads[0], call.outs[0]
    if not isinstance(read, Parameter):
        rearranged(call, walk)
        return
    new = len(walk.shape(out)) - len(walk.shape(read))
    for axis, size in enumerate(walk.shape(read)):
        if size > 1:
            walk.ties(Line(out, axis + new), [Line(read, axis)])


def _landings(
    call: Call, walk: Walk, *, splits: bool = False
) -> Iterator[tuple[Line, Line, Positions]]:
    """Every line read, the axis of the result it lies along, and the channel at each place there.

    A line of one channel lies nowhere in particular; one that is cut into several axes is spread.
    """
    (out,) = call.outs
    for line in walk.lines(call.reads[0]):
        shape = walk.shape(line.value)
        (numbers,) = numbers_after(call, shape, line.axis)
        varying = [axis for axis, length in enumerate(numbers.shape) if length > 1]
        cut_up = splits and len(varying) > 1
        heads = spreading.split(line, shape, walk.shape(out)) if cut_up else None
        if shape[line.axis] == 1:
            walk.absorbs(line)
        elif len(varying) == 1:
            yield line, Line(out, varying[0]), numbers.reshape(-1)
        elif not varying:
            raise Declined(f"{call.op} drops channels by number")
        elif heads is None or len(walk.lines(line.value)) > 1:
            raise Declined(f"{call.op} spreads channels over several axes")
        else:
            spreading.becomes_spread(walk, out, heads)


def joined(call: Call, walk: Walk) -> None:
    """Channels of several tensors come to stand one after the other."""
    values = call.reads
    if not walk.splits.keys().isdisjoint(values):
        rank = len(walk.shape(call.outs[0]))
        if not by_heads(call, walk, values, batch=rank - call.arguments["dim"] % rank):
            raise Declined(spreading.SPREAD)
        return
    for axis in {line.axis for line in _lines_along(call, walk, values)}:
        sizes = [walk.shape(value)[axis] for value in values]
        operand = np.repeat(np.arange(len(values)), sizes)
        position = np.concatenate([np.arange(size) for size in sizes])
        reads = [Line(value, axis) for value in values]
        walk.selects(Line(call.outs[0], axis), reads, operand, position, joined=True)


def stacked(call: Call, walk: Walk) -> None:
    """Equal places come to lie side by side, along an axis of their own."""
    _lines_along(call, walk, call.reads)


def picked(call: Call, walk: Walk) -> None:
    """Single places of an axis are taken, which must not be the channels'."""
    if _lines_along(call, walk, call.reads[:1]):
        raise Declined(f"{call.op} picks single channels by number")


def cut(call: Call, walk: Walk) -> None:
    """Channels are cut into parts, or change places: its numbers tell which are where."""
    for line in _lines_along(call, walk, call.reads):
        narrow = [1] * len(walk.shape(line.value))
        narrow[line.axis] = walk.shape(line.value)[line.axis]
        results = numbers_after(call, tuple(narrow), line.axis)
        for out, numbers in zip(call.outs, results, strict=True):
            walk.takes(Line(out, line.axis), line, numbers)


def _lines_along(call: Call, walk: Walk, values: Sequence[str]) -> list[Line]:
    """The lines along the axis that an operation works on; those beside it are tied, if none is.

    Lines behind that axis move by one where it comes (`stack`) or goes (`select`).
    """
    values = list(dict.fromkeys(values))
    rank = len(walk.shape(values[0]))
    after = len(walk.shape(call.outs[0])) if call.outs else rank
    dims = call.arguments.get("dims")
    dims = call.arguments.get("dim") if dims is None else dims
    if dims in ([], None):
        raise Declined(f"{call.op} over all axes at once")
    touched = {dim % max(rank, after) for dim in ([dims] if isinstance(dims, int) else dims)}
    lines = [line for value in values for line in walk.lines(value)]
    along = [line for line in lines if line.axis in touched and after <= rank]
    for axis in sorted({line.axis for line in lines}) if not along else ():
        moved = axis + (after - rank) * (axis >= min(touched))
        for out in call.outs:
            walk.ties(Line(out, moved), [Line(value, axis) for value in values])
    return along


def _moving(names: str, lines: FlowRule, spread: SpreadRule | None = None, **facets: bool) -> None:
    flow = movement(lines, spread)
    register(names, Operation(flow=flow, constants=same, stored=True, **facets))


_moving("reshape", reshaped, reshape_spread, resizes=True)
_moving("view _unsafe_view", viewed, reshape_spread, resizes=True)
# Spread channels are found behind a copy as they lay before it.
_moving("clone contiguous alias detach", pointwise, permute_spread, hands_on=True)
_moving("flatten", reshaped, reshape_spread)
_moving("unflatten", unflattened, reshape_spread)
_moving("squeeze", rearranged, reshape_spread)
_moving("permute transpose swapaxes swapdims movedim", rearranged, permute_spread)
_moving("unsqueeze", rearranged, unsqueeze_spread)
_moving("t pixel_unshuffle", rearranged)
_moving("repeat tile", partial(counted, joined=True))
_moving("channel_shuffle native_channel_shuffle", partial(counted, joined=False))
_moving("cat concat", joined)
_moving("stack", stacked)
_moving("select unbind", picked, pick_spread)
_moving("index_select", picked)
_moving("split chunk slice narrow", cut, pick_spread)
_moving("split_with_sizes tensor_split roll flip", cut)
_moving("expand", expanded, expand_spread, broadcasts=True, resizes=True)
_moving("repeat_interleave", interleaved, repeat_spread)
