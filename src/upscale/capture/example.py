"""The example a model is called with, and walks through whatever containers its tensors lie in.

Besides tuples, lists and dicts a model may take or give dataclasses:

    {"x": Batch(image=tensor, mask=None)}    leaves_of →  [tensor, None]
                                             mapped    →  the same, with other leaves
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True, slots=True)
class Example:
    """What the model is called with: positional and keyword inputs."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, example: object) -> Example:
        """A tensor is one input, a tuple or list several, a dict keyword inputs."""
        if isinstance(example, Example):
            return example
        if isinstance(example, Mapping):
            return cls((), dict(example))
        if isinstance(example, (tuple, list)):
            return cls(tuple(example))
        return cls((example,))

    def map(self, change: Callable[[Tensor], Tensor]) -> Example:
        """The example with every tensor `x` in it replaced by `change(x)`."""
        inputs = (self.args, dict(self.kwargs))
        return Example(*mapped(inputs, lambda x: change(x) if isinstance(x, Tensor) else x))

    def copied(self) -> Example:
        """The example with tensors of its own: a model may write into what it is given."""
        return self.map(lambda x: x.detach().clone())

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor in the example."""
        return tensors_in((self.args, dict(self.kwargs)))


def two_of_each(example: Example) -> Example:
    """The example with a batch of two where it has one: a size of one hides what is done to it."""
    if any(x.ndim == 0 or x.shape[0] != 1 for x in example.tensors):
        return example
    return example.map(lambda x: torch.cat([x, x]))


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in what a model takes or gives, also in dataclasses and mappings.

    >>> len(tensors_in({"a": [torch.zeros(1)], "b": (torch.zeros(1), 3)}))
    2
    """
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, Tensor)]


def plain_tensors(value: Any) -> list[Tensor]:
    """Every tensor in tuples, lists and dicts; dataclasses are not looked into."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def leaves_of(value: Any) -> list[Any]:
    """Everything in a value that is no container."""
    leaves: list[Any] = []
    for leaf in tree_leaves(value):
        if is_record(leaf):
            leaves += leaves_of([getattr(leaf, f.name, None) for f in dataclasses.fields(leaf)])
        elif isinstance(leaf, Mapping):
            leaves += leaves_of(list(leaf.values()))
        else:
            leaves.append(leaf)
    return leaves


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with everything in it that is no container changed, also in dataclasses."""

    def changed(leaf: Any) -> Any:
        if not is_record(leaf):
            return change(leaf)
        new = copy.copy(leaf)
        for part in dataclasses.fields(leaf):
            object.__setattr__(new, part.name, mapped(getattr(leaf, part.name), change))
        return new

    return tree_map(changed, value)


def is_record(value: Any) -> bool:
    """Whether a value is a dataclass, and no class of one."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def alike(one: Any, other: Any, *, rtol: float = 0.0, atol: float = 0.0) -> bool:
    """Whether two results hold the same: tensors within a tolerance, all else exactly.

    >>> alike((torch.ones(2), 3), (torch.ones(2), 3)), alike(torch.ones(2), torch.ones(2).double())
    (True, False)
    """

    def same(a: Any, b: Any) -> bool:
        if type(a) is not type(b) or not isinstance(a, Tensor):
            return type(a) is type(b) and bool(a == b)
        comparable = a.shape == b.shape and a.dtype == b.dtype and not a.is_meta
        return comparable and torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)

    ones, others = leaves_of(one), leaves_of(other)
    return len(ones) == len(others) and all(map(same, ones, others))
