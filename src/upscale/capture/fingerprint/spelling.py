"""Ways to write one operation that differ in nothing but how it is written.

`x.view(2, -1)`, `x.reshape(2, -1)` and `x.flatten(1)` merge the same axes; `relu_` computes what
`relu` does; a dropout in evaluation hands on what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch

from upscale.capture.captured import Call, Ref, TensorInfo, schema_of

RESHAPES = {"view", "reshape", "_unsafe_view", "_reshape_alias", "flatten", "unflatten"}
# What hands on the numbers it is given, wherever in memory they lie then.
SAME_NUMBERS = {"alias", "detach", "contiguous", "clone", "lift_fresh", "lift_fresh_copy"}
CASTS = {"to", "_to_copy"}
DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"}
# Where numbers lie and by which kernel they are computed is no matter of what is computed.
UNSAID = {
    *("device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "generator"),
    *("cudnn_enabled", "cudnn_enable", "benchmark", "deterministic", "allow_tf32", "implicit"),
}
Shape = tuple[int, ...]
# Says a size that stands at a place among so many.
Say = Callable[[int, int, int], str]
# What may be told sizes; a number in any other operation is a constant.
TAKING_SIZES = {
    *RESHAPES,
    *("expand", "repeat", "tile", "broadcast_to", "slice", "narrow", "split", "split_with_sizes"),
    *("arange", "linspace", "zeros", "ones", "full", "empty", "rand", "randn", "slice_scatter"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
}
NO_SIZES = {"dim", "step"}
TAKING_OUTPUT_SIZES = ("upsample_", "_upsample_", "adaptive_")


def plain_name(call: Call) -> str:
    """An operation's name, the same whether it writes in place or not."""
    if call.op.endswith("_") and not call.op.endswith("__") and schema_of(call.overload).written:
        return call.op[:-1]
    return call.op


def takes_sizes(name: str) -> bool:
    """Whether an operation may be told the size of what it makes."""
    return name in TAKING_SIZES or name.startswith(TAKING_OUTPUT_SIZES)


def unsaid(call: Call, argument: str) -> bool:
    """Whether an argument changes nothing in what an operation computes."""
    if call.op == "batch_norm" and argument == "momentum":
        return not call.arguments.get("training")
    return argument in UNSAID


def is_identity(call: Call, values: Mapping[str, TensorInfo], own: torch.dtype | None) -> bool:
    """Whether an operation gives the numbers that it is given; `own` is the example's dtype."""
    if not call.args or not isinstance(call.args[0], Ref) or not call.outs or call.aliased:
        return False
    name = plain_name(call)
    if name in SAME_NUMBERS:
        return True
    if name in DROPOUTS:
        return not call.arguments.get("train") or call.arguments.get("p") == 0
    before, after = values[call.args[0].value], values[call.outs[0]]
    if name in CASTS:
        dtype = call.arguments.get("dtype")
        moved = dtype is None and call.arguments.get("other") is None
        return moved or (dtype == own and before.itemsize == after.itemsize)
    if name == "slice":
        return before.shape == after.shape and call.arguments.get("step") == 1
    return name in (*RESHAPES, "expand") and before.shape == after.shape


def reshaped(before: Shape, after: Shape, say: Say) -> str:
    """What a reshape does to axes: how many are merged, and what they are split into.

    Of what axes are split into one factor follows from the rest and is not said: it may be the
    example's size.

    >>> reshaped((2, 8, 5, 5), (2, 2, 4, 25), lambda size, place, places: str(size))
    '1, 1 to ? x 4, 2'
    """
    if not prod(before) or not prod(after):
        return " x ".join(map(str, after))
    said = [say(size, place, len(after)) for place, size in enumerate(after)]
    return ", ".join(
        str(len(merged)) + _split(after[parts.start : parts.stop], said[parts.start : parts.stop])
        for merged, parts in _groups(before, after)
    )


def splits_alike(before: Shape, after: Shape, other_before: Shape, other_after: Shape) -> bool:
    """Whether a reshape merges and splits the same axes on another example.

    >>> splits_alike((2, 2, 8, 8), (2, 2, 64), (1, 2, 8, 8), (1, 2, 64))
    True
    >>> splits_alike((2, 2, 8, 8), (2, 2, 64), (1, 2, 8, 8), (2, 2, 32))
    False
    """
    if not prod(before) or before == other_before:
        return True
    return all(
        prod(other_before[i] for i in merged) == prod(other_after[i] for i in parts)
        for merged, parts in _groups(before, after)
    )


def _groups(before: Shape, after: Shape) -> list[tuple[range, range]]:
    """Which axes of a tensor become which, one after the other; none has a size of zero."""
    groups: list[tuple[range, range]] = []
    here = there = 0
    while here < len(before) and there < len(after):
        first, start = here, there
        one, other = before[here], after[there]
        here, there = here + 1, there + 1
        while one != other:
            if one < other:
                one, here = one * before[here], here + 1
            else:
                other, there = other * after[there], there + 1
        groups.append((range(first, here), range(start, there)))
    if here < len(before) or there < len(after):  # nothing but ones is left
        merged, parts = groups.pop() if groups else (range(0), range(0))
        groups.append((range(merged.start, len(before)), range(parts.start, len(after))))
    return groups


def _split(sizes: Shape, said: list[str]) -> str:
    if len(sizes) == 1:
        return ""
    follows = next((place for place, size in enumerate(sizes) if size != 1), 0)
    return " to " + " x ".join((*said[:follows], "?", *said[follows + 1 :]))


def expanded(before: Shape, after: Shape, say: Say) -> str:
    """The new sizes of axes that a tensor is repeated along.

    >>> expanded((1, 3), (4, 3), lambda size, place, places: str(size))
    '4, as it was'
    """
    padded = (None,) * (len(after) - len(before)) + before
    return ", ".join(
        "as it was" if old == new else say(new, place, len(after))
        for place, (old, new) in enumerate(zip(padded, after, strict=True))
    )
