"""What capture hands on: the example, the graph, and the record of one run of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from upscale.capture.packing import mapped, tensors_in


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

    def map(self, change: Callable[[Any], Any]) -> Example:
        """The example with every leaf replaced by `change(leaf)`."""
        return Example(mapped(self.args, change), mapped(dict(self.kwargs), change))

    def copied(self) -> Example:
        """The example with tensors of its own: a model may write into what it is given."""
        return self.map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x)

    @property
    def tensors(self) -> list[Tensor]:
        """Every tensor in the example."""
        return tensors_in((self.args, dict(self.kwargs)))


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
    """One observed ATen operation; tensors appear as `Ref`."""

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outs: tuple[str, ...]
    aliased: bool
    overload: Any = field(compare=False)

    def argument(self, name: str) -> Any:
        """The value passed for a schema argument, or its default."""
        for position, argument in enumerate(self.overload._schema.arguments):
            if argument.name == name:
                if position < len(self.args):
                    return self.args[position]
                return self.kwargs.get(name, argument.default_value)
        return None

    def named(self, *names: str) -> list[str]:
        """The values passed for these arguments; what is no tensor is left out."""
        return [ref.value for name in names if isinstance(ref := self.argument(name), Ref)]

    @property
    def reads(self) -> tuple[str, ...]:
        """The values among its arguments, in order, those within lists too."""
        return tuple(_values((*self.args, *self.kwargs.values())))


def _values(parts: Iterable[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Ref):
            yield part.value
        elif isinstance(part, (list, tuple)):
            yield from _values(part)


@dataclass(frozen=True, slots=True)
class Observed:
    """What one graph node did: its operations, the values it read and what it returned.

    `writes` are the values it wrote into, `statistics` those that normalisations keep up to
    date within it.
    """

    calls: tuple[Call, ...]
    reads: Mapping[str, Any]
    result: Any
    writes: tuple[str, ...]
    is_view: bool
    statistics: tuple[str, ...] = ()

    def making(self, value: str) -> Call:
        """The operation that makes a value."""
        return next(call for call in self.calls if value in call.outs)


@dataclass(frozen=True, slots=True)
class Captured:
    """A traced model and the record of one run.

    A parameter's value is named `@` and its qualified name; all other values are named after
    the graph node that made them. `computed` holds the layers that compute their weight in
    every call, with its shape; `kinds` the class of every module;
    `leaves` the modules without modules in them; `extras` what the
    graph refers to that the model does not own; `sizes` the shapes on the example itself, of
    which two may have been run; `doubted` the nodes that may do something else on another input;
    `state` the values in the memory of buffers that the model writes to, for the calls to come;
    `example` what the model was captured with, on the meta device; `constants` digests of the
    tensors that the graph refers to and that are neither parameters nor buffers; `fixed` says
    which sizes of the inputs the graph takes for granted, and why.
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

    def keeps(self, node: str) -> bool:
        """Whether a node writes what later calls may read."""
        seen = self.observed[node]
        return not self.state.isdisjoint((*seen.writes, *seen.statistics))
