"""Products of computed tensors: attention, and what it is written with."""

from __future__ import annotations

from upscale.flow.spread import stays_spread
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
    _heads_pass(call, walk, second)
    last = len(walk.shape(second)) - 1
    if Line(second, last) in walk.lines(second) and last > 0:
        walk.ties(Line(call.outs[0], len(walk.shape(call.outs[0])) - 1), [Line(second, last)])
    if walk.has_channels(first) or walk.lines(second):
        walk.note = MIXES_CHANNELS


def attention(call: Call, walk: Walk) -> None:
    """Values pass, head by head; queries and keys meet each other and are needed whole."""
    (value,) = call.named("value")
    _heads_pass(call, walk, value)
    walk.note = "attention scores need every channel of queries and keys"


def _heads_pass(call: Call, walk: Walk, value: str) -> None:
    """Values spread over heads stay spread: each head mixes them over places alone."""
    out, contracted = walk.shape(call.outs[0]), len(walk.shape(value)) - 2
    if value not in walk.splits or len(out) != len(walk.shape(value)):
        return
    grid = walk.splits[value].grid
    spread = [axis for axis, flat in enumerate(grid.axes) if flat is None]
    whole = all(out[axis] == size for axis, size in zip(spread, grid.sizes, strict=True))
    if contracted not in spread and whole:
        stays_spread(walk, call.outs[0], value, grid.axes)


def einsum(call: Call, walk: Walk) -> None:
    """Two operands: channels of the second that the result keeps pass; the rest stays whole."""
    equation = str(call.arguments.get("equation")).replace(" ", "")
    operands = call.reads
    inputs, _, result = equation.partition("->")
    terms = inputs.split(",")
    walk.note = MIXES_CHANNELS
    if len(operands) != 2 or not result or "." in equation or operands[1] not in walk.splits:
        return
    grid = walk.splits[operands[1]].grid
    axes = dict(zip(terms[1], grid.axes, strict=True))
    spread = [label for label in terms[1] if axes[label] is None]
    kept = [label for label in result if label in spread]
    # The last spread axis must be the second operand's alone; heads may be shared.
    if kept == spread and spread[-1] not in terms[0]:
        # An axis of the first operand is none of the second's: -2 is no axis of any tensor.
        flat = [axes.get(label, -2) for label in result]
        stays_spread(walk, call.outs[0], operands[1], tuple(flat))


register("matmul bmm", Operation(flow=matmul, constants=zeros_stay, stored=True))
register("mm", Operation(flow=matmul, stored=True))
register("einsum", Operation(flow=einsum, constants=zeros_stay, stored=True))
register(
    "scaled_dot_product_attention",
    Operation(flow=attention, constants=zeros_stay, attends=True, stored=True),
)
