"""What a model's code makes of sizes outside of its arithmetic: lengths, and what it remembers.

`len(x)` has to be a plain number, and a model that compares its input's shape with the last one
decides on it. `torch.export` would fix the size for either, although the model takes any.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from upscale.capture.packing import tensors_in
from upscale.capture.record import Example
from upscale.subject.layers import copied

Memories: TypeAlias = Mapping[tuple[str, str], Any]
# No size is negative: what compares with this finds that it does not know the input yet.
NEVER = -1


@contextmanager
def lengths_free(model: nn.Module) -> Iterator[None]:
    """Let `len(tensor)` be a size, in the files that a model's classes come from.

    It is what `len` is for everything else, so that nobody who runs there meanwhile is disturbed.
    """
    files = {kind.__module__ for module in model.modules() for kind in type(module).__mro__}
    spaces = [
        space
        for name in files - {"builtins"}
        if name.partition(".")[0] != "torch"
        if "len" not in (space := vars(sys.modules.get(name, object)))
        if isinstance(space, dict)
    ]
    for space in spaces:
        space["len"] = _length
    try:
        yield
    finally:
        for space in spaces:
            space.pop("len", None)


def _length(of: Any) -> Any:
    return of.shape[0] if isinstance(of, Tensor) and of.ndim else len(of)


def find_memories(model: nn.Module, example: Example) -> dict[tuple[str, str], Any]:
    """The attributes in which a model keeps its last input's sizes, by module and name.

    Found by running it on shapes alone, on two sizes in turn: what is the same after the same
    size, and not after the other.
    """
    found: dict[tuple[str, str], Any] = {}
    for axes in ((0,), (-1,), (-2, -1)):
        other = example.map(partial(_grown, axes))
        try:
            seen = _remembered(model, (other, example, other))
        except Exception:  # the model's own code runs, on sizes that it may not take
            continue
        first, second, third = seen
        found |= {
            key: value
            for key, value in second.items()
            if key in first and first[key] == third.get(key) != value
        }
    return found


def forget(model: nn.Module, memories: Memories) -> nn.Module:
    """The model, with the sizes it remembers those of no input; changed in place."""
    for (path, name), value in memories.items():
        setattr(model.get_submodule(path), name, _forgotten(value))
    return model


def computes_as(program: ExportedProgram, model: nn.Module, example: Example) -> bool:
    """Whether a program gives what the model gives, on the example."""
    if any(tensor.is_meta for tensor in example.tensors):
        return False
    results = []
    for module in (program.module(), model):
        # Parameters are shared; what a module writes into while it runs is its own.
        own = copied(module, {id(tensor): tensor for tensor in module.parameters()})
        given = example.copied()
        with torch.no_grad():
            results.append(tensors_in(own(*given.args, **given.kwargs)))
    ours, theirs = results
    return len(ours) == len(theirs) and all(map(_close, ours, theirs))


def _close(one: Tensor, other: Tensor) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def _remembered(model: nn.Module, examples: tuple[Example, ...]) -> list[dict[Any, Any]]:
    """The plain attributes of a model after each of several runs."""

    def shape_of(tensor: Any) -> Any:
        return torch.empty_like(tensor, device="meta") if isinstance(tensor, Tensor) else tensor

    owned: dict[int, Any] = {
        id(tensor): nn.Parameter(shape_of(tensor), requires_grad=False)
        if isinstance(tensor, nn.Parameter)
        else shape_of(tensor)
        for tensor in (*model.parameters(), *model.buffers())
    }
    twin, seen = copied(model, owned), []
    with torch.device("meta"), torch.no_grad():
        for example in examples:
            given = example.map(shape_of)
            twin(*given.args, **given.kwargs)
            seen.append(
                {
                    (path, name): value
                    for path, module in twin.named_modules()
                    for name, value in vars(module).items()
                    if _is_size(value)
                }
            )
    return seen


def _grown(axes: tuple[int, ...], leaf: Any) -> Any:
    """A tensor twice as long along some axes; those behind the second are counted from the end."""
    if not isinstance(leaf, Tensor):
        return leaf
    for axis in axes:
        if leaf.ndim > (2 if axis < 0 else 0):
            leaf = torch.cat([leaf, leaf], axis)
    return leaf


def _is_size(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and all(map(_is_size, value))
    return isinstance(value, int) and not isinstance(value, bool)


def _forgotten(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        parts = [_forgotten(part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return NEVER
