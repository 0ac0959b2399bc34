"""Operations on each element alone, or on the elements at one place of several tensors."""

from __future__ import annotations

from upscale.flow.known import firmest
from upscale.flow.spread import SPREAD, stays_spread
from upscale.ops.heads import by_heads
from upscale.ops.operands import elementwise, zeros_stay
from upscale.ops.table import Call, Declined, Known, Line, Operands, Operation, Walk, register


def pointwise(call: Call, walk: Walk) -> None:
    """Equal places meet: every operand's line is tied to the result's, by broadcasting."""
    (out,) = call.outs
    spread = walk.spread_alone(call)
    if spread is not None:
        stays_spread(walk, out, spread, walk.splits[spread].grid.axes)
        return
    if not walk.splits.keys().isdisjoint(call.reads):
        if not by_heads(call, walk, call.reads, batch=1):
            raise Declined(SPREAD)
        return
    shape = walk.shape(out)
    lacking = {value: len(shape) - len(walk.shape(value)) for value in call.reads}
    for axis, size in enumerate(shape):
        aligned = [Line(value, axis - lacking[value]) for value in call.reads]
        reads = [x for x in aligned if x.axis >= 0 and walk.shape(x.value)[x.axis] == size]
        if any(line in walk.lines(line.value) for line in reads):
            walk.ties(Line(out, axis), reads)


def prelu(call: Call, walk: Walk) -> None:
    """One slope for all channels, or one each."""
    read, weight = call.reads
    for line in walk.lines(read):
        each = line.axis == 1 and walk.shape(weight) != (1,)
        beside = [Line(weight, 0)] if each else []
        walk.ties(Line(call.outs[0], line.axis), [line, *beside])


def drops(call: Call) -> bool:
    """Whether a dropout drops anything."""
    return bool(call.arguments.get("train") and call.arguments.get("p"))


def product(operands: Operands) -> Known:
    """A product with zero is zero, whatever the other factor is."""
    made = elementwise(operands)
    for known in operands.each():
        made = firmest(known.zeros, made)
    return made


def quotient(operands: Operands) -> Known:
    """A quotient; one that is rounded jumps."""
    rounded = operands.call.arguments.get("rounding_mode")
    return operands.nothing if rounded else elementwise(operands)


def cast(operands: Operands) -> Known:
    """Zero is zero in every type."""
    return zeros_stay(operands) if len(operands.call.reads) == 1 else operands.nothing


def dropout(operands: Operands) -> Known:
    """Zeros stay; all else, where nothing is dropped."""
    return zeros_stay(operands) if drops(operands.call) else operands.read


def not_negative(operands: Operands) -> Known:
    """What is not negative stays."""
    return operands.read.only(operands.read.numbers >= 0)


register(
    """
    abs abs_ addcdiv addcmul celu celu_ clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ cos
    elu elu_ erf exp exp_ expm1 gelu gelu_ hardsigmoid hardsigmoid_ hardswish hardswish_ hardtanh
    hardtanh_ leaky_relu leaky_relu_ lerp log log1p log2 log_sigmoid maximum minimum mish mish_ neg
    nan_to_num pow reciprocal relu relu6 relu6_ relu_ rsqrt rsub selu selu_ sigmoid sigmoid_ silu
    silu_ sin softplus softshrink sqrt square sub sub_ tan tanh tanh_
    """,
    Operation(flow=pointwise, constants=elementwise, stored=True),
)
register("add add_", Operation(flow=pointwise, constants=elementwise, adds=True, stored=True))
register("mul mul_", Operation(flow=pointwise, constants=product, multiplies=True, stored=True))
register("div div_", Operation(flow=pointwise, constants=quotient, stored=True))
register("prelu", Operation(flow=prelu, constants=not_negative, stored=True))

# Where these jump, rounding decides what a constant becomes; some draw; some compute no number.
register(
    """
    alpha_dropout bitwise_not ceil eq feature_alpha_dropout floor floor_divide fmod ge gt hardshrink
    isnan le logical_and logical_not logical_or lt masked_fill masked_fill_ ne remainder round sgn
    sign threshold threshold_ trunc type_as where
    """,
    Operation(flow=pointwise, stored=True),
)
register(
    "dropout dropout_ feature_dropout",
    Operation(flow=pointwise, constants=dropout, hands_on=True, stored=True),
)

register("to _to_copy", Operation(flow=pointwise, constants=cast, stored=True))
# The other tensor is asked for its sizes alone, and pruned alike.
register("expand_as", Operation(flow=pointwise, stored=True))
