"""Sizes of the last input that a model remembers in attributes, and a model that forgot them.

    if x.shape[2] != self.height:
        self.height = x.shape[2]
        self.table = make_table(self.height)

`torch.export` would fix the size where such a comparison comes out equal, although the model takes
any. A model that remembers no size (-1) makes its table anew, in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from upscale.capture.captured import Example, alike, tensors_in
from upscale.capture.symbolic_trace import twin_of
from upscale.model.layers import copied

Memories: TypeAlias = Mapping[tuple[str, str], Any]
# No size is negative: what compares with this finds that it does not know the input yet.
NEVER = -1


def find_memories(model: nn.Module, example: Example) -> dict[tuple[str, str], Any]:
    """The attributes in which a model keeps its last input's sizes, by module and name.

    Found by running it on shapes alone, on two sizes in turn: what is the same after the same
    size, and not after the other.
    """
    found: dict[tuple[str, str], Any] = {}
    for axes in ((0,), (-1,), (-2, -1)):
        other = example.map(partial(_grown, axes))
        try:
            first, second, third = _remembered(model, (other, example, other))
        except Exception:  # the model's own code runs, on sizes that it may not take
            continue
        kept = [k for k in second if k in first and first[k] == third.get(k) != second[k]]
        found |= {key: second[key] for key in kept}
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
    return alike(*results, rtol=1e-3, atol=1e-4)


def _remembered(model: nn.Module, examples: tuple[Example, ...]) -> list[dict[Any, Any]]:
    """The plain attributes of a model after each of several runs."""
    shape_of = partial(torch.empty_like, device="meta")
    twin, seen = twin_of(model, shape_of)[0], []
    with torch.device("meta"), torch.no_grad():
        for example in examples:
            given = example.map(shape_of)
            twin(*given.args, **given.kwargs)
            held = [(path, *own) for path, m in twin.named_modules() for own in vars(m).items()]
            seen.append({(path, name): value for path, name, value in held if _is_size(value)})
    return seen


def _grown(axes: tuple[int, ...], leaf: Tensor) -> Tensor:
    """A tensor twice as long along some axes; those behind the second are counted from the end."""
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
