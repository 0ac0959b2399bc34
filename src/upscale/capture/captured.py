"""What capture hands on: a graph, and what each of its nodes did in one run.

For `torch.relu(self.conv(x))` the graph has four nodes, and the run shows

    node    calls                                           takes     makes
    x                                                                 x
    conv    conv2d(x, @conv.weight, @conv.bias) -> conv     x         conv
    relu    relu(conv) -> relu                              conv      relu
    output                                                  relu      relu

Everything that later stages ask of a node or a call is a field, worked out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor, fx

from upscale.capture.example import Example, plain_tensors


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
    """What an operation's schema says, read once: torch takes its time to tell."""

    op: str
    defaults: Mapping[str, Any]
    written: tuple[str, ...]
    aliases: bool

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Every argument of a call, by name."""
        return {**self.defaults, **dict(zip(self.defaults, args, strict=False)), **kwargs}

    def written_in(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors that a call writes into."""
        given = self.arguments(args, kwargs) if self.written else {}
        return plain_tensors([given[name] for name in self.written])


@cache
def schema_of(overload: Any) -> Schema:
    """What is known of an operation: its arguments' defaults, which of them it writes into, and
    whether it says that it does, or that what it gives shares their memory.

    >>> import torch
    >>> schema_of(torch.ops.aten.relu_.default)
    Schema(op='relu_', defaults={'self': None}, written=('self',), aliases=True)
    """
    schema = overload._schema
    return Schema(
        schema.name.removeprefix("aten::"),
        {argument.name: argument.default_value for argument in schema.arguments},
        tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write),
        any(a.alias_info for a in schema.arguments),
    )


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
