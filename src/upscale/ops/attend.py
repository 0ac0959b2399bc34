"""Products of computed tensors: attention, and what it is written with."""

from __future__ import annotations

from collections.abc import Sequence

from upscale.channels import Parameter
from upscale.flow.lines import GRID
from upscale.flow.spread import stays_spread
from upscale.ops.heads import by_heads, head_axis, in_heads
from upscale.ops.layers import MIXES_CHANNELS, matrix_product
from upscale.ops.operands import zeros_stay
from upscale.ops.table import Call, Line, Operation, Walk, register


def matmul(call: Call, walk: Walk) -> None:
    """The second operand's last axis passes; what is contracted is needed whole.

    A second operand that is a matrix of parameters is a layer's weight.
    """
    first, second = call.reads
    if walk.is_owned(second) and len(walk.shape(second)) == 2 <= len(walk.shape(first)):
        matrix_product(call, walk, first, second)
        return
    if _heads_pass(call, walk, second, [first]):
        return
    if by_heads(call, walk, call.reads, batch=2):
        return
    last = len(walk.shape(second)) - 1
    if Line(second, last) in walk.lines(second) and last > 0:
        walk.ties(Line(call.outs[0], len(walk.shape(call.outs[0])) - 1), [Line(second, last)])
    if walk.has_channels(first) or walk.lines(second):
        walk.note = MIXES_CHANNELS


def attention(call: Call, walk: Walk) -> None:
    """Values pass, head by head; queries and keys meet each other and are needed whole."""
    (value,) = call.named("value")
    if not _heads_pass(call, walk, value, call.named("query", "key", "attn_mask")):
        walk.note = "attention scores need every channel of queries and keys"


def _heads_pass(call: Call, walk: Walk, value: str, beside: Sequence[str]) -> bool:
    """Values spread over heads stay spread: each head mixes them over places alone.

    Whether whole heads may leave too, with those of the operands `beside`.
    """
    out, contracted = walk.shape(call.outs[0]), len(walk.shape(value)) - 2
    if value not in walk.splits or len(out) != len(walk.shape(value)):
        return False
    grid = walk.splits[value].grid
    spread = [axis for axis, flat in enumerate(grid.axes) if flat is None]
    whole = all(out[axis] == size for axis, size in zip(spread, grid.sizes, strict=True))
    if contracted in spread or not whole:
        return False
    line, served = Line(call.outs[0], GRID), _served(walk, spread, out, beside)
    if served:
        walk.serves(line, served, out[spread[0]])
    stays_spread(walk, call.outs[0], value, grid.axes, loose=bool(served))
    return bool(served)


def _served(
    walk: Walk, spread: Sequence[int], out: tuple[int, ...], beside: Sequence[str]
) -> list[Line]:
    """The lines of operands that have heads where the result has; none if that is not plain."""
    if len(spread) != 2:
        return []
    lines = []
    for operand in beside:
        axis = spread[0] - len(out) + len(walk.shape(operand))
        line = in_heads(walk, operand, axis, out[spread[0]])
        if line is not None and not isinstance(operand, Parameter):
            lines.append(line)
        elif (
            line is not None
            or operand in walk.splits
            or (axis >= 0 and walk.shape(operand)[axis] != 1)
        ):
            return []
    return lines


def einsum(call: Call, walk: Walk) -> None:
    """Two operands: channels of the second that the result keeps pass; or heads of both do."""
    equation = str(call.arguments.get("equation")).replace(" ", "")
    operands = call.reads
    inputs, _, result = equation.partition("->")
    terms = inputs.split(",")
    walk.note = MIXES_CHANNELS
    if len(operands) != 2 or not result or "." in equation:
        return
    if len(set(terms[0])) < len(terms[0]) or len(set(terms[1])) < len(terms[1]):
        return
    if _values_pass(call, walk, terms, result) or _heads_meet(call, walk, terms, result):
        walk.note = ""


def _values_pass(call: Call, walk: Walk, terms: list[str], result: str) -> bool:
    """Whether values pass an einsum, and whole heads may leave with those of its first operand."""
    weights, values = call.reads
    if values not in walk.splits:
        return False
    grid = walk.splits[values].grid
    axes = dict(zip(terms[1], grid.axes, strict=True))
    spread = [label for label in terms[1] if axes[label] is None]
    kept = [label for label in result if label in spread]
    # The last spread axis must be the second operand's alone; heads may be shared.
    if kept != spread or spread[-1] in terms[0]:
        return False
    heads, served = grid.sizes[0], None
    if len(spread) == 2 and spread[0] in terms[0]:
        served = in_heads(walk, weights, terms[0].index(spread[0]), heads)
    if served is not None:
        walk.serves(Line(call.outs[0], GRID), [served], heads)
    # An axis of the first operand is none of the second's: -2 is no axis of any tensor.
    flat = tuple(axes.get(label, -2) for label in result)
    stays_spread(walk, call.outs[0], values, flat, loose=served is not None)
    return served is not None


def _heads_meet(call: Call, walk: Walk, terms: list[str], result: str) -> bool:
    """Whether heads of two operands meet in an einsum, each its like, and the result has them."""
    found = {
        terms[index][axis]
        for index, value in enumerate(call.reads)
        if (axis := head_axis(walk, value)) is not None
    }
    if len(found) != 1 or not found <= set(result):
        return False
    (label,) = found
    (out,) = call.outs
    heads = walk.shape(out)[result.index(label)]
    reads = []
    for value, term in zip(call.reads, terms, strict=True):
        line = in_heads(walk, value, term.index(label), heads) if label in term else None
        if line is None and (label in term or walk.has_channels(value)):
            return False
        reads += [] if line is None else [line]
    walk.serves(Line(out, result.index(label)), reads, heads, makes=True)
    return True


register("matmul bmm", Operation(flow=matmul, constants=zeros_stay, stored=True))
register("mm", Operation(flow=matmul, stored=True))
register("einsum", Operation(flow=einsum, constants=zeros_stay, stored=True))
register(
    "scaled_dot_product_attention",
    Operation(flow=attention, constants=zeros_stay, attends=True, stored=True),
)
