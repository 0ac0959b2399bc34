"""What operators are written with: calls that become nodes, or are made at once if all is constant.

build.call(torch.relu, x)        x made by a node   →  a node relu(x)
                                 x a constant       →  its relu, now
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from upscale.errors import OnnxError
from upscale.onnx_files.naming import Names
from upscale.onnx_files.values import RUNS, Made, Size, Sizes, Value, at_run, holds_made, sizes_of

# What folding may make of constants, in numbers, beyond a multiple of what the file holds.
FOLDED, TIMES = 1 << 22, 16


@dataclass(frozen=True, slots=True)
class Held:
    """Which constant of the file a parameter or buffer was made from, and how it lies in it.

    `how` is `same`, `transposed` (of two axes), or `line` (one line, with axes of one beside it).
    """

    constant: str
    how: str = "same"


@dataclass(slots=True, eq=False)
class Build:
    """The torch graph so far, the modules it calls, and what each part was made from.

    `origins` tells the ONNX node that each node of the graph belongs to, by its place in the
    file; `held` the constant behind each parameter, by path; `sizes` are nodes that ask for sizes.
    """

    graph: fx.Graph
    names: Names
    budget: int
    root: nn.Module = field(default_factory=nn.Module)
    origins: dict[str, int] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    constants: dict[int, tuple[Tensor, str]] = field(default_factory=dict)
    inputs: list[Made] = field(default_factory=list)
    sizes: set[str] = field(default_factory=set)
    current: int = -1
    _attributes: dict[tuple[int, str], str] = field(default_factory=dict)
    _layers: dict[tuple[Any, ...], str] = field(default_factory=dict)
    _asked: dict[tuple[fx.Node, int], Size] = field(default_factory=dict)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A function of values: a node, or its result where all of them are constant."""
        if not holds_made([*args, *kwargs.values()]):
            return self._folded(function, args, kwargs)
        runs = tuple(
            function(*at_run(list(args), run), **{k: at_run(v, run) for k, v in kwargs.items()})
            for run in RUNS
        )
        own = self._operand(list(args)), {k: self._operand(v) for k, v in kwargs.items()}
        return self._made(self.graph.call_function(function, tuple(own[0]), own[1]), runs)

    def method(self, name: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        """A method of a value, as `call`."""
        if not holds_made([value, *args]):
            return self._folded(operator.methodcaller(name, *args, **kwargs), (value,), {})
        runs = tuple(
            getattr(at_run(value, run), name)(*at_run(list(args), run), **kwargs) for run in RUNS
        )
        operands = tuple(self._operand([value, *args]))
        return self._made(self.graph.call_method(name, operands, kwargs), runs)

    def layer(self, weight: Tensor, layer: nn.Module, held: dict[str, Held], *read: Value) -> Made:
        """A call of a layer, which is named after the constant that is its weight.

        The same layer of the same constants is one module, called twice.
        """
        tensors = tuple(id(own) for own in (*layer.parameters(), *layer.buffers()))
        key: tuple[Any, ...] = (str(layer), tuple((k, v.constant) for k, v in sorted(held.items())))
        key = key if held else (*key, tensors)
        path = self._layers.get(key)
        if path is None:
            path = self.names.layer(self.name_of(weight))
            self._put(path, layer)
            self._layers[key] = path
            self.held |= {f"{path}.{name}": own for name, own in held.items()}
        state = {k: v.to("meta") for k, v in layer.state_dict(keep_vars=True).items()}
        runs = tuple(
            functional_call(layer, state, tuple(at_run(own, run) for own in read)) for run in RUNS
        )
        node = self.graph.call_module(path, tuple(self._operand(list(read))))
        return cast(Made, self._made(node, runs))

    def size(self, value: Made, axis: int) -> int | Size:
        """One size of a value: a number, unless it is free."""
        axis %= value.rank
        fixed = value.shape[axis]
        if fixed is not None:
            return fixed
        if (value.node, axis) not in self._asked:
            asked = self.method("size", value, axis)
            self._asked[value.node, axis] = asked
        return self._asked[value.node, axis]

    def arithmetic(self, function: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
        """A sum, product, … of two sizes."""
        if isinstance(one, int) and isinstance(other, int):
            return function(one, other)
        return self.call(function, one, other)

    def tensor(self, value: Value) -> Tensor | Made:
        """A value as a tensor: sizes are put into one."""
        if not isinstance(value, Sizes):
            return value
        anchor = self.inputs[0]
        parts = [
            self.method("new_full", anchor, (1,), own, dtype=torch.int64) for own in value.entries
        ]
        if value.scalar:
            return cast(Made, self.method("reshape", parts[0], ()))
        return cast(Made, self.call(torch.cat, parts, 0))

    def constant(self, value: Value | None, what: str) -> Tensor:
        """A value that must be constant."""
        if not isinstance(value, Tensor):
            raise OnnxError(f"its {what} is computed when the model runs; it must be a constant")
        return value

    def numbers(self, value: Value | None, what: str) -> list[int | Size]:
        """The whole numbers of a vector or scalar, some of which may be free sizes."""
        if isinstance(value, Sizes):
            return list(value.entries)
        held = self.constant(value, what)
        return [int(own) for own in held.reshape(-1).tolist()]

    def fixed(self, value: Value | None, what: str) -> list[int]:
        """The whole numbers of a vector or scalar that depends on no size."""
        return [int(own) for own in self.constant(value, what).reshape(-1).tolist()]

    def name_of(self, tensor: Tensor) -> str:
        """What a constant is called in the file."""
        return self.constants[id(tensor)][1] if id(tensor) in self.constants else ""

    def know(self, tensor: Tensor, name: str) -> None:
        """Remember what a constant is called; the first name stays."""
        self.constants.setdefault(id(tensor), (tensor, name))

    def shape_array(self, value: Value) -> Any:
        """The shape of a value, as an array of sizes."""
        if isinstance(value, Tensor):
            return np.array(value.shape, dtype=object)
        if isinstance(value, Sizes):
            return np.array([] if value.scalar else [len(value.entries)], dtype=object)
        made = np.empty(value.rank, dtype=object)
        made[:] = [self.size(value, axis) for axis in range(value.rank)]
        return made

    def shape(self, value: Value) -> Tensor | Sizes:
        """The shape of a value."""
        return sizes_of(self.shape_array(value))

    def attribute(self, tensor: Tensor, held: Held | None = None) -> fx.Node:
        """A node for a constant: a parameter if the file holds it as such, a buffer otherwise."""
        own = held or Held(self.name_of(tensor))
        key = (id(tensor), own.how)
        if key not in self._attributes:
            path = self.names.tensor(own.constant)
            trained = tensor.is_floating_point() and tensor.dim() > 0
            self._put(path, nn.Parameter(tensor) if trained else tensor)
            self._attributes[key] = path
            self.constants.setdefault(id(tensor), (tensor, own.constant))
            if own.constant:
                self.held[path] = own
        node = self.graph.get_attr(self._attributes[key])
        self.origins[node.name] = self.current
        return node

    def _operand(self, value: Any) -> Any:
        if isinstance(value, Made | Size):
            return value.node
        if isinstance(value, Tensor):
            return self.attribute(value)
        if isinstance(value, slice):
            return slice(*(self._operand(own) for own in (value.start, value.stop, value.step)))
        if isinstance(value, tuple | list):
            return type(value)(self._operand(own) for own in value)
        return value

    def _made(self, node: fx.Node, runs: tuple[Any, ...]) -> Any:
        self.origins[node.name] = self.current
        first, second = runs
        if isinstance(first, tuple | list):
            return [
                self._made(self.graph.call_function(operator.getitem, (node, i)), own)
                for i, own in enumerate(zip(first, second, strict=True))
            ]
        if isinstance(first, Tensor):
            return Made(node, (first, second))
        self.sizes.add(node.name)
        return Size(node, (first, second))

    def _folded(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """What a function makes of constants, unless that is more than the file explains."""

        def numberless(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return type(value)(numberless(own) for own in value)
            return value.to("meta") if isinstance(value, Tensor) and value.dim() else value

        with torch.no_grad():
            try:
                told = function(
                    *(numberless(own) for own in args),
                    **{k: numberless(own) for k, own in kwargs.items()},
                )
            except NotImplementedError:  # how much it makes depends on the numbers, and is not more
                told = None
            made = [told] if isinstance(told, Tensor) else told
            if made is not None and not isinstance(made, int | float):
                self.budget -= sum(own.numel() for own in made)
                if self.budget < 0:
                    raise OnnxError(
                        "its constants unfold to more than the size of the file explains"
                    )
            return function(*args, **kwargs)

    def _put(self, path: str, what: Any) -> None:
        *outer, last = path.split(".")
        owner = self.root
        for name in outer:
            if name not in owner._modules:
                owner.add_module(name, nn.Module())
            owner = cast(nn.Module, owner._modules[name])
        if isinstance(what, nn.Module):
            owner.add_module(last, what)
        elif isinstance(what, nn.Parameter):
            owner.register_parameter(last, what)
        else:
            owner.register_buffer(last, what)


def number(value: Any, beside: Any) -> Any:
    """A constant that is one number, as that number, where broadcasting gives no further axis."""
    if not (isinstance(value, Tensor) and value.numel() == 1 and isinstance(beside, Made)):
        return value
    alike = value.is_floating_point() == beside.dtype.is_floating_point
    return value.item() if alike and value.dim() <= beside.rank else value
