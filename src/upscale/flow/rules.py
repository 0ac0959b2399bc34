"""One small rule per ATen operation: how it moves, ties, mixes or reduces channels.

A rule reads an observed call and tells the walk which relations hold. What it cannot vouch
for it declines, and the walk freezes the node. There is no default rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from upscale.capture import Call, Ref
from upscale.flow.relations import Line
from upscale.flow.walk import Declined, Walk, tensors

Rule = Callable[[Call, Walk], None]
RULES: dict[str, Rule] = {}


def rule(*operations: str) -> Callable[[Rule], Rule]:
    """Register a rule for ATen operations, by name without overload."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations, function))
        return function

    return register


POINTWISE = """
    abs abs_ add add_ addcdiv addcmul alias bitwise_not celu celu_ ceil clamp clamp_ clamp_max
    clamp_max_ clamp_min clamp_min_ clone contiguous cos detach div div_ dropout dropout_ elu elu_
    eq erf exp exp_ expm1 feature_dropout feature_alpha_dropout alpha_dropout floor floor_divide
    fmod ge gelu gelu_ gt hardshrink hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh
    hardtanh_ isnan le leaky_relu leaky_relu_ lerp log log1p log2 log_sigmoid logical_and
    logical_not logical_or lt masked_fill masked_fill_ maximum minimum mish mish_ mul mul_ ne neg
    nan_to_num pow reciprocal relu relu6 relu6_ relu_ remainder round rsqrt rsub selu selu_ sgn
    sigmoid sigmoid_ sign silu silu_ sin softplus softshrink softsign sqrt square sub sub_ tan
    tanh tanh_ threshold threshold_ to trunc where _to_copy type_as
    float double half bfloat16
""".split()

MIXES_CHANNELS = "channels are multiplied with channels, as queries with keys: it needs them all"


@rule(*POINTWISE)
def pointwise(call: Call, walk: Walk) -> None:
    """Equal places meet: every operand's line is tied to the result's, by broadcasting."""
    (out,) = call.outs
    shape = walk.shape(out)
    operands = tensors(call)
    for axis, size in enumerate(shape):
        aligned = [
            Line(value, axis - len(shape) + len(walk.shape(value)))
            for value in operands
            if axis - len(shape) + len(walk.shape(value)) >= 0
        ]
        reads = [line for line in aligned if walk.shape(line.value)[line.axis] == size]
        if any(line in walk.lines(line.value) for line in reads):
            walk.ties(Line(out, axis), reads)


@rule(
    *(f"{pool}_pool{n}d" for pool in ("max", "avg", "adaptive_avg", "adaptive_max") for n in "123"),
    *(f"max_pool{n}d_with_indices" for n in "123"),
    *(f"upsample_{way}{n}d" for way in ("nearest", "_nearest_exact") for n in "123"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa"),
    *("_upsample_bicubic2d_aa", "lp_pool2d"),
)
def over_space(call: Call, walk: Walk) -> None:
    """Works within each channel, over the trailing spatial axes."""
    read = tensors(call)[0]
    spatial = next(n for n in (1, 2, 3) if f"{n}d" in call.op)
    _channels_pass(call, walk, read, touched=range(-spatial, 0))


@rule("pad", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "replication_pad2d")
def pad(call: Call, walk: Walk) -> None:
    """Padding space leaves channels alone; padding a line with zeros adds constant channels."""
    read = tensors(call)[0]
    amounts = list(call.argument("pad") or call.argument("padding"))
    touched = [-1 - i // 2 for i, amount in enumerate(amounts) if amount]
    rank = len(walk.shape(read))
    grown = [line for line in walk.lines(read) if line.axis - rank in touched]
    if not grown:
        _channels_pass(call, walk, read, touched=touched)
    elif len(set(touched)) == 1 and call.argument("mode") in (None, "constant"):
        if call.argument("value"):
            raise Declined("pads channels with a value other than zero")
        (line,) = grown
        where = 2 * (-1 - (line.axis - rank))
        before, after, size = amounts[where], amounts[where + 1], walk.shape(read)[line.axis]
        if min(before, after) < 0:
            raise Declined("crops channels by negative padding")
        position = np.concatenate(
            (np.full(before, -1), np.arange(size), np.full(after, -1)), dtype=np.int64
        )
        operand = np.where(position < 0, -1, 0)
        walk.selects(Line(call.outs[0], line.axis), [line], operand, position, joined=True)
    else:
        raise Declined("pads channels and space at once")


@rule("mean", "sum", "amax", "amin", "var", "std", "norm", "linalg_vector_norm", "prod")
def reduction(call: Call, walk: Walk) -> None:
    """Over space a channel stays itself; over channels all are needed, in any order."""
    read = tensors(call)[0]
    rank = len(walk.shape(read))
    dims = call.argument("dim")
    dims = range(rank) if dims is None or dims == [] else dims
    touched = {d % rank for d in ([dims] if isinstance(dims, int) else dims)} if rank else set()
    keep = bool(call.argument("keepdim"))
    for line in walk.lines(read):
        if line.axis in touched:
            walk.absorbs(line)
        else:
            gone = 0 if keep else sum(d < line.axis for d in touched)
            walk.ties(Line(call.outs[0], line.axis - gone), [line])


@rule("softmax", "log_softmax", "_softmax", "_log_softmax", "cumsum", "sort", "argsort")
def along(call: Call, walk: Walk) -> None:
    """Softmax over a line mixes its channels but treats them alike."""
    read = tensors(call)[0]
    dim = call.argument("dim") % len(walk.shape(read))
    for line in walk.lines(read):
        if line.axis == dim and "softmax" not in call.op:
            raise Declined(f"{call.op} along channels depends on their order")
        for out in call.outs:
            walk.ties(Line(out, line.axis), [line], whole=line.axis == dim)


@rule("batch_norm", "instance_norm", "native_batch_norm")
def batch_norm(call: Call, walk: Walk) -> None:
    """Each channel has its own statistics and parameters."""
    read = tensors(call)[0]
    names = ("weight", "bias", "running_mean", "running_var")
    beside = [Line(ref.value, 0) for name in names if isinstance(ref := call.argument(name), Ref)]
    _only_lines(walk, read, {1})
    if walk.lines(read):
        walk.ties(Line(call.outs[0], 1), [Line(read, 1), *beside])


@rule("layer_norm", "rms_norm")
def layer_norm(call: Call, walk: Walk) -> None:
    """Normalised axes are mixed but their channels treated alike; parameters follow them."""
    read = tensors(call)[0]
    first = len(walk.shape(read)) - len(call.argument("normalized_shape"))
    weights = [r.value for name in ("weight", "bias") if isinstance(r := call.argument(name), Ref)]
    for line in walk.lines(read):
        mixed = line.axis >= first
        beside = [Line(weight, line.axis - first) for weight in weights] if mixed else []
        walk.ties(Line(call.outs[0], line.axis), [line, *beside], whole=mixed)


@rule("group_norm")
def group_norm(call: Call, walk: Walk) -> None:
    """One group mixes all channels alike; more groups are told apart by place."""
    read = tensors(call)[0]
    _only_lines(walk, read, {1})
    if not walk.lines(read):
        return
    if call.argument("num_groups") != 1:
        raise Declined("group_norm mixes channels within its groups")
    weights = [r.value for name in ("weight", "bias") if isinstance(r := call.argument(name), Ref)]
    beside = [Line(weight, 0) for weight in weights]
    walk.ties(Line(call.outs[0], 1), [Line(read, 1), *beside], whole=True)


@rule("prelu")
def prelu(call: Call, walk: Walk) -> None:
    """One slope for all channels, or one each."""
    read, weight = tensors(call)
    for line in walk.lines(read):
        each = line.axis == 1 and walk.shape(weight) != (1,)
        beside = [Line(weight, 0)] if each else []
        walk.ties(Line(call.outs[0], line.axis), [line, *beside])


@rule(*(f"conv{n}d" for n in "123"))
def convolution(call: Call, walk: Walk) -> None:
    """Contracts axis 1 of its input with axis 1 of its weight."""
    _convolution(call, walk, row_axis=0, column_axis=1)


@rule(*(f"conv_transpose{n}d" for n in "123"))
def conv_transpose(call: Call, walk: Walk) -> None:
    """Contracts axis 1 of its input with axis 0 of its weight."""
    if call.argument("groups") != 1:
        raise Declined("a grouped transposed convolution tells its groups apart by place")
    _convolution(call, walk, row_axis=1, column_axis=0)


def _convolution(call: Call, walk: Walk, *, row_axis: int, column_axis: int) -> None:
    read, weight = call.argument("input").value, call.argument("weight").value
    channel = len(walk.shape(read)) - len(walk.shape(weight)) + 1
    _only_lines(walk, read, {channel, 0} if channel else {0})
    bias = call.argument("bias")
    if channel and Line(read, 0) in walk.lines(read):
        walk.ties(Line(call.outs[0], 0), [Line(read, 0)])
    walk.reduces(
        Line(call.outs[0], channel),
        Line(read, channel),
        weight=weight,
        row_axis=row_axis,
        column_axis=column_axis,
        groups=call.argument("groups"),
        bias=_bias(bias, walk) if isinstance(bias, Ref) else None,
    )


@rule("linear")
def linear(call: Call, walk: Walk) -> None:
    """Contracts the last axis of its input with axis 1 of its weight; other axes pass."""
    read, weight = call.argument("input").value, call.argument("weight").value
    last = len(walk.shape(read)) - 1
    for line in walk.lines(read):
        if line.axis != last:
            walk.ties(Line(call.outs[0], line.axis), [line])
    bias = call.argument("bias")
    walk.reduces(
        Line(call.outs[0], last),
        Line(read, last),
        weight=weight,
        row_axis=0,
        column_axis=1,
        groups=1,
        bias=_bias(bias, walk) if isinstance(bias, Ref) else None,
    )


@rule("matmul", "bmm")
def matmul(call: Call, walk: Walk) -> None:
    """The second operand's last axis passes; what is contracted is needed whole."""
    first, second = tensors(call)
    _attends(call, walk, second, contracted=len(walk.shape(second)) - 2)
    last = len(walk.shape(second)) - 1
    if Line(second, last) in walk.lines(second) and last > 0:
        walk.ties(Line(call.outs[0], len(walk.shape(call.outs[0])) - 1), [Line(second, last)])
    if walk.lines(first) or first in walk.splits or walk.lines(second):
        walk.note = MIXES_CHANNELS


@rule("scaled_dot_product_attention")
def attention(call: Call, walk: Walk) -> None:
    """Values pass, head by head; queries and keys meet each other and are needed whole."""
    value = call.argument("value").value
    _attends(call, walk, value, contracted=len(walk.shape(value)) - 2)
    walk.note = "attention scores need every channel of queries and keys"


def _attends(call: Call, walk: Walk, value: str, contracted: int) -> None:
    """Values spread over heads stay spread: each head mixes them over places alone."""
    if value not in walk.splits or len(walk.shape(call.outs[0])) != len(walk.shape(value)):
        return
    grid = walk.splits[value].grid
    spread = [axis for axis, flat in enumerate(grid.axes) if flat is None]
    out = walk.shape(call.outs[0])
    whole = all(out[axis] == size for axis, size in zip(spread, grid.sizes, strict=True))
    if contracted not in spread and whole:
        walk.spreads(call.outs[0], value, grid.axes)


@rule("einsum")
def einsum(call: Call, walk: Walk) -> None:
    """Two operands: channels of the second that the result keeps pass; the rest stays whole."""
    equation = str(call.argument("equation")).replace(" ", "")
    operands = tensors(call)
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
        flat = [axes.get(label, -2) for label in result]
        walk.spreads(call.outs[0], operands[1], tuple(flat))


@rule("glu")
def glu(call: Call, walk: Walk) -> None:
    """The two halves of a line meet."""
    read = tensors(call)[0]
    dim = call.argument("dim") % len(walk.shape(read))
    for line in walk.lines(read):
        out = Line(call.outs[0], line.axis)
        if line.axis != dim:
            walk.ties(out, [line])
        else:
            half = np.arange(walk.shape(read)[dim] // 2)
            walk.folds(out, line, np.stack((half, half + len(half)), axis=1), nested=False)


@rule("pixel_shuffle")
def pixel_shuffle(call: Call, walk: Walk) -> None:
    """Every r² neighbouring channels become one."""
    read = tensors(call)[0]
    axis, square = len(walk.shape(read)) - 3, call.argument("upscale_factor") ** 2
    _only_lines(walk, read, {axis})
    for line in walk.lines(read):
        table = np.arange(walk.shape(read)[axis]).reshape(-1, square)
        walk.folds(Line(call.outs[0], axis), line, table, nested=True)


MOVEMENTS = """
    cat concat stack split split_with_sizes chunk tensor_split narrow slice select unbind
    index_select roll flip view reshape _unsafe_view flatten unflatten permute transpose
    movedim swapaxes swapdims t squeeze unsqueeze repeat tile pixel_unshuffle
    channel_shuffle native_channel_shuffle
""".split()


@rule("expand")
def expand(call: Call, walk: Walk) -> None:
    """A parameter's own axes are followed from here: a class token has the stream's order."""
    read, out = tensors(call)[0], call.outs[0]
    if not read.startswith("@"):
        walk.moves(call)
        return
    new = len(walk.shape(out)) - len(walk.shape(read))
    for axis, size in enumerate(walk.shape(read)):
        if size > 1:
            walk.ties(Line(out, axis + new), [Line(read, axis)])


@rule(*MOVEMENTS)
def movement(call: Call, walk: Walk) -> None:
    """Data only moves: the operation itself, run on channel numbers, tells where to."""
    if call.argument("dtype") is not None:
        raise Declined("it reads the bits of another type")
    walk.moves(call)


def _bias(bias: Ref, walk: Walk) -> str:
    """A bias, which is cut where it is used; one made within the node cannot be reached."""
    if bias.value in walk.made:
        raise Declined("its bias is computed within")
    return bias.value


def _channels_pass(call: Call, walk: Walk, read: str, touched: Sequence[int] | range) -> None:
    rank = len(walk.shape(read))
    for line in walk.lines(read):
        if line.axis - rank in touched:
            raise Declined(f"{call.op} works along the channels")
        for out in call.outs:
            walk.ties(Line(out, line.axis), [line])


def _only_lines(walk: Walk, read: str, allowed: set[int]) -> None:
    if any(line.axis not in allowed for line in walk.lines(read)):
        raise Declined("channels lie along an axis this operation works over")
