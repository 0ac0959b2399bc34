"""Rules: what each operation makes of channels that hold one number everywhere.

Like the flow's rules they speak of ATen operations. An operation that is not here makes no
constants. Those that work on each element alone are run, as they are, on the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upscale.capture import Call, Ref
from upscale.flow.relations import Fold, Line, Pass, Reduce
from upscale.flow.rules import MOVEMENTS, POINTWISE
from upscale.flow.walk import tensors
from upscale.lowering.known import Known, agreed


@dataclass(frozen=True, slots=True)
class Operands:
    """One call, the relation that it states, and what is known of what it reads."""

    call: Call
    relation: Pass | Fold | Reduce
    of: Callable[[Line], Known]
    owned: Mapping[str, Tensor]
    size: int

    @property
    def read(self) -> Known:
        """What is known of the first line read."""
        return self.of(self.relation.reads[0])

    @property
    def nothing(self) -> Known:
        """What a rule says that knows nothing."""
        return Known.nothing(self.size)

    def parameter(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """The numbers of the parameter passed for an argument, as wide numbers."""
        ref = self.call.argument(name)
        held = self.owned.get(ref.value) if isinstance(ref, Ref) else None
        return None if held is None else numbers_of(held)

    def each(self) -> Iterator[Known]:
        """What is known of every tensor the call is given, along the result's line."""
        lines = {line.value: line for line in self.relation.reads}
        for value in tensors(self.call):
            held, line = self.owned.get(value), lines.get(value)
            if held is not None and held.numel() in (1, self.size):
                # A parameter is one number for all, or one for each channel and nothing else.
                alone = held.numel() == 1 or (line is not None and held.shape[line.axis] > 1)
                spread = np.broadcast_to(numbers_of(held).reshape(-1), self.size)
                known = Known(np.array(spread), np.zeros(self.size, dtype=bool))
                yield known if alone or self.size == 1 else self.nothing
            else:
                yield self.nothing if line is None or held is not None else self.of(line)


Rule = Callable[[Operands], Known]
RULES: dict[str, Rule] = {}
NORMS = ("batch_norm", "native_batch_norm")


def rule(*operations: str) -> Callable[[Rule], Rule]:
    """Register a rule for ATen operations, by name without overload."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operations, function))
        return function

    return register


def numbers_of(held: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A tensor's numbers, as wide numbers."""
    numbers: np.ndarray[Any, np.dtype[np.float64]] = held.detach().double().cpu().numpy()
    return numbers


# Where some of these jump, rounding decides; dropout draws; casts may go to another device; the
# rest only moves data, and may want more axes than one.
APART = """
    bitwise_not ceil eq floor floor_divide fmod ge gt hardshrink isnan le logical_and logical_not
    logical_or lt masked_fill masked_fill_ ne remainder round sgn sign threshold threshold_ trunc
    where dropout dropout_ feature_dropout feature_alpha_dropout alpha_dropout
    to _to_copy type_as float double half bfloat16 alias clone contiguous detach
""".split()


@rule(*(operation for operation in POINTWISE if operation not in APART))
def pointwise(operands: Operands) -> Known:
    """The operation itself, run on the numbers; a product with zero is zero."""
    if operands.call.argument("rounding_mode"):
        return operands.nothing
    each = list(operands.each())
    made = _run(operands.call, each)
    if operands.call.op in ("mul", "mul_"):
        for known in each:
            zero = known.only(known.numbers == 0)
            made = _firmest(zero, made)
    return made


@rule("to", "_to_copy", "float", "double", "half", "bfloat16")
def cast(operands: Operands) -> Known:
    """Zero is zero in every type."""
    return _zeros(operands.read) if len(tensors(operands.call)) == 1 else operands.nothing


@rule("dropout", "dropout_", "feature_dropout")
def dropout(operands: Operands) -> Known:
    """Zeros stay; all else, where nothing is dropped."""
    drops = operands.call.argument("train") and operands.call.argument("p")
    return _zeros(operands.read) if drops else operands.read


@rule(*MOVEMENTS, "expand", "alias", "clone", "contiguous", "detach")
def movement(operands: Operands) -> Known:
    """Data only moves: what all parts agree on stays."""
    return agreed([operands.of(line) for line in operands.relation.reads])


@rule("pixel_shuffle")
def pixel_shuffle(operands: Operands) -> Known:
    """Channels that become one agree, or nothing is known."""
    assert isinstance(operands.relation, Fold)
    table = operands.relation.table
    return agreed([operands.read.at(table[:, part]) for part in range(table.shape[1])])


@rule("glu")
def glu(operands: Operands) -> Known:
    """A gate does not open zeros."""
    if not isinstance(operands.relation, Fold):
        return _zeros(operands.read)
    return _zeros(operands.read.at(operands.relation.table[:, 0]))


@rule("pad", "constant_pad_nd")
def pad(operands: Operands) -> Known:
    """What is padded with its own number stays constant."""
    if operands.call.argument("mode") not in (None, "constant"):
        return operands.read
    value = float(operands.call.argument("value") or 0)
    return operands.read.only(operands.read.numbers == value)


@rule(
    *(f"max_pool{n}d" for n in "123"),
    *(f"max_pool{n}d_with_indices" for n in "123"),
    *(f"adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in "123"),
    *(f"upsample_{way}{n}d" for way in ("nearest", "_nearest_exact") for n in "123"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa"),
    *("upsample_bicubic2d", "_upsample_bicubic2d_aa"),
    *("reflection_pad1d", "reflection_pad2d", "replication_pad2d", "mean", "amax", "amin"),
)
def average(operands: Operands) -> Known:
    """A mean or a maximum of one number is that number; where it was found is not."""
    first = operands.relation.out.value == operands.call.outs[0]
    return operands.read if first else operands.nothing


@rule(*(f"avg_pool{n}d" for n in "123"))
def avg_pool(operands: Operands) -> Known:
    """Padding may count, as zeros; then only zeros stay."""
    call = operands.call
    padded = np.any(call.argument("padding")) or call.argument("ceil_mode")
    if padded or call.argument("divisor_override"):
        return _zeros(operands.read)
    return operands.read


@rule("sum", "matmul", "bmm", "scaled_dot_product_attention", "einsum")
def combination(operands: Operands) -> Known:
    """Any combination of zeros is zero."""
    return _zeros(operands.read)


@rule("prelu")
def prelu(operands: Operands) -> Known:
    """What is not negative stays."""
    return operands.read.only(operands.read.numbers >= 0)


@rule(*NORMS)
def batch_norm(operands: Operands) -> Known:
    """With statistics of its own each channel is scaled and shifted."""
    given = ("running_mean", "running_var", "weight", "bias")
    mean, var, scale, shift = (operands.parameter(name) for name in given)
    computed = any(
        isinstance(operands.call.argument(name), Ref) and operands.parameter(name) is None
        for name in given
    )
    if operands.call.argument("training") or computed or mean is None or var is None:
        return operands.nothing
    numbers = (operands.read.numbers - mean) / np.sqrt(var + operands.call.argument("eps"))
    if scale is not None:
        numbers = numbers * scale
    if shift is not None:
        numbers = numbers + shift
    return Known(numbers, np.zeros(operands.size, dtype=bool))


def channelwise(operands: Operands, *, masked: bool) -> Known:
    """A depthwise convolution: zero gives the bias; one number gives one, if nothing pads it.

    A `masked` one reads nothing.
    """
    assert isinstance(operands.relation, Reduce)
    weight, bias = operands.parameter("weight"), operands.parameter("bias")
    if weight is None or (bias is None and operands.call.argument("bias") is not None):
        return operands.nothing
    read = _zeros(operands.read) if pads(operands.call) else operands.read
    numbers = read.numbers * (0.0 if masked else weight.reshape(operands.size, -1).sum(axis=1))
    if bias is None:
        return _firmest(_zeros(read), Known(numbers, np.zeros_like(read.firm)))
    return Known(numbers + bias, np.zeros_like(read.firm))


def pads(call: Call) -> bool:
    """Whether a convolution may read, or write, past a border."""
    padding = call.argument("padding")
    if call.op == "linear" or padding == "valid":
        return False
    return "transpose" in call.op or isinstance(padding, str) or bool(np.any(padding))


def _zeros(known: Known) -> Known:
    return known.only(known.numbers == 0)


def _firmest(one: Known, other: Known) -> Known:
    """What either knows; the first where it is firm."""
    return one.only(one.firm).or_else(other).or_else(one)


def _run(call: Call, each: list[Known]) -> Known:
    """Run a call on the numbers where all are known."""
    where = np.logical_and.reduce([known.constant for known in each])
    if not where.any():
        return Known.nothing(len(where))
    given = iter(torch.from_numpy(np.where(where, known.numbers, 1.0)) for known in each)

    def filled(part: Any) -> Any:
        if isinstance(part, (list, tuple)):
            return type(part)(filled(inner) for inner in part)
        return next(given) if isinstance(part, Ref) else part

    result = call.overload(*filled(call.args), **{k: filled(v) for k, v in call.kwargs.items()})
    if result.is_complex():
        return Known.nothing(len(where))
    firm = np.logical_and.reduce([known.firm for known in each])
    numbers = numbers_of(result)
    return Known(numbers, firm).only(where & np.isfinite(numbers))
