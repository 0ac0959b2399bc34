"""What capture is given, and what it hands on: a graph, and what each of its nodes did in one run.

For `torch.relu(self.conv(x))` the graph has four nodes, and the run shows

    node    calls                                           takes     makes
    x                                                                 x
    conv    conv2d(x, @conv.weight, @conv.bias) -> conv     x         conv
    relu    relu(conv) -> relu                              conv      relu
    output                                                  relu      relu

Everything that later stages ask of a node or a call is a field, worked out once. What a model takes
or gives may lie in tuples, lists, dicts and dataclasses:

    {"x": Batch(image=tensor, mask=None)}    leaves_of →  [tensor, None]
                                             mapped    →  the same, with other leaves
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

PLAIN_DICTS = (dict, fx.immutable_collections.immutable_dict)


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
    if isinstance(value, Tensor):
        return [value]
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


def is_own_dict(value: Any) -> bool:
    """Whether a value is a dict of a class of its own, which a graph has no words for."""
    return isinstance(value, dict) and type(value) not in PLAIN_DICTS


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


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor in an observed call, by the name of its value."""

    value: str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Shape and element size of a value, as the example showed them."""

    shape: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, slots=True)
class Call:
    """One observed ATen operation; tensors appear as `Ref`.

    `reads` are the values among its arguments, in order; `arguments` all that its schema has, by
    name, those that were not passed at their defaults. `aliased` says that memory it reads was
    written through another view within its node.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    reads: tuple[str, ...]
    outs: tuple[str, ...]
    aliased: bool
    arguments: Mapping[str, Any] = field(compare=False)
    overload: Any = field(compare=False)

    def named(self, *names: str) -> list[str]:
        """The values passed for these arguments; what is no tensor is left out."""
        parts = (self.arguments.get(name) for name in names)
        return [part.value for part in parts if isinstance(part, Ref)]


def place_of(tensor: Tensor) -> int:
    """Where a tensor's memory is: the same for all views of it."""
    place: int = tensor.untyped_storage()._cdata
    return place


@dataclass(frozen=True, slots=True)
class Schema:
    """What an operation's schema says, read once: torch takes its time to tell.

    One that `views` gives part of what it is given, or changes how that is laid out.
    """

    op: str
    defaults: Mapping[str, Any]
    written: tuple[str, ...]
    views: bool

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of a call, by name."""
        return {**self.defaults, **dict(zip(self.defaults, args, strict=False)), **kwargs}

    def written_in(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors that a call writes into."""
        given = self.arguments(args, kwargs) if self.written else {}
        return plain_tensors([given[name] for name in self.written])


@cache
def schema_of(overload: Any) -> Schema:
    """What is known of an operation.

    >>> schema_of(torch.ops.aten.relu_.default)
    Schema(op='relu_', defaults={'self': None}, written=('self',), views=False)
    """
    schema = overload._schema
    return Schema(
        schema.name.removeprefix("aten::"),
        {argument.name: argument.default_value for argument in schema.arguments},
        tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write),
        torch.Tag.inplace_view in overload.tags
        or any(a.alias_info and not a.alias_info.is_write for a in schema.arguments),
    )


def home(node: fx.Node) -> str | None:
    """The innermost module that a node is part of: the one it calls, or that it was traced in."""
    if node.op == "call_module":
        return str(node.target)
    around = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
    return around[-1] if around else None


@dataclass(frozen=True, slots=True)
class Observed:
    """What one graph node did.

    `reads` are the values of each operand, in the operand's own structure, and `result` is what
    the node returned, likewise; `takes` and `makes` are the same values in a row, each once.
    `writes` are the values it wrote into, `statistics` those that normalisations keep up to date
    within it; it `keeps` if any of these is read by later calls of the model. `home` is the
    innermost module it is part of.
    """

    calls: tuple[Call, ...]
    reads: Mapping[str, Any]
    result: Any
    takes: tuple[str, ...]
    makes: tuple[str, ...]
    writes: tuple[str, ...]
    statistics: tuple[str, ...]
    is_view: bool
    home: str | None
    keeps: bool = False

    def making(self, value: str) -> Call:
        """The operation that makes a value."""
        return next(call for call in self.calls if value in call.outs)


@dataclass(frozen=True, slots=True)
class Captured:
    """A traced model and the record of one run.

    A parameter's value is named `@` and its qualified name; all other values are named after
    the graph node that made them.

    - Of the model: `computed` are the layers that compute their weight in every call, with its
      shape; `kinds` the class of every module; `leaves` the modules without modules in them.
    - Of the graph: `extras` is what it refers to that the model does not own; `constants` are
      digests of its tensors that are neither parameters nor buffers; `doubted` are nodes that may
      do something else on another input; `fixed` says which sizes of the inputs it takes for
      granted, and why.
    - Of the run: `values` are all tensors, of two samples where the example has one, and `sizes`
      their shapes on the example itself; `state` are those in the memory of buffers that the model
      writes to, for the calls to come; `example` is what it was captured with, without numbers.
    """

    name: str
    graph: fx.Graph
    extras: Mapping[str, Any]
    computed: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, str]
    leaves: frozenset[str]
    observed: Mapping[str, Observed]
    values: Mapping[str, TensorInfo]
    sizes: Mapping[str, tuple[int, ...]]
    training: bool
    example: Example
    doubted: frozenset[str] = frozenset()
    state: frozenset[str] = frozenset()
    constants: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
