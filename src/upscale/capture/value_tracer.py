"""Trace a function symbolically while knowing what its values were on the example.

A proxy of `torch.fx` knows nothing, so `if x.shape[2] > 4:` stops it. Here every proxy carries the
value it had, and Python may go on:

    def halves(x):                          x = placeholder            # seen: a 1x8x6x6 tensor
        if x.shape[2] > 4:                  size = x.shape[2]          # seen: 6
            x = x[:, :, ::2]      ──►       gt = size > 4              # seen: True
        return x                            require_size(gt, "at this size halves takes ...")
                                            return x[:, :, ::2]

Sizes stay symbolic. Where Python decides on them it decides as on the example, and the graph
asserts that it still would. What cannot be traced faithfully raises; nothing is guessed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate
from torch.fx.proxy import GraphAppendingTracer

from upscale.capture.captured import place_of
from upscale.capture.in_place import WRITES
from upscale.capture.node_queries import RANKS, SIZES
from upscale.capture.size_guards import require_size
from upscale.capture.tracer import line_of, running_line

COUNTS = ("numel", "nelement")
MAKERS = {f"new_{name}": getattr(torch, name) for name in ("zeros", "ones", "full", "empty")}


class Unfaithful(Exception):
    """A function does something that a trace would not repeat faithfully."""


class TracedValue(fx.Proxy):
    """A value of a traced function, and what it was on the example.

    Python may decide on a value that `decides`: it is computed from sizes alone. `view_of` is
    the tensor a basic index was taken of, and the index. The memory of a `stale` value was written
    through another view: it must not be read again.
    """

    tracer: ValueTracer

    def __init__(self, node: fx.Node, tracer: ValueTracer, seen: Any, *, decides: bool) -> None:
        super().__init__(node, tracer)
        self.seen, self.decides = seen, decides
        self.view_of: tuple[TracedValue, Any] | None = None
        self.given = self.stale = False

    def __getattr__(self, k: str) -> Any:
        if k.startswith("__"):
            raise AttributeError(k)
        found = getattr(self.seen, k)
        if isinstance(self.seen, Tensor) and k in RANKS:
            return found  # a graph is traced for one number of axes
        create = self.tracer.create_proxy
        if callable(found):
            return lambda *args, **kwargs: create("call_method", k, (self, *args), kwargs)
        return create("call_function", getattr, (self, k), {})

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))  # type: ignore[index]

    def __len__(self) -> int:
        if isinstance(self.seen, (tuple, list)):
            return len(self.seen)
        return int(self.size(0))

    def __index__(self) -> int:
        return operator.index(self.tracer.fix(self))

    def __int__(self) -> int:
        return int(self.tracer.fix(self))

    def __float__(self) -> float:
        return float(self.tracer.fix(self))

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.assign(self, index, value)


class ValueTracer(GraphAppendingTracer):
    """Writes down what a function does to values it sees."""

    def __init__(self, function: str, stack_trace: str) -> None:
        super().__init__(fx.Graph())
        self.decides = False
        self._effects: set[fx.Node] = set()
        self._tensors: list[TracedValue] = []
        self._guards: set[tuple[fx.Node, Any]] = set()
        self._stack_trace = stack_trace
        self._function = function

    def give(self, name: str, value: Any, *, decides: bool) -> TracedValue:
        """An argument of the function."""
        made = self._see(self.graph.placeholder(name), value, decides=decides)
        made.given = True
        return made

    def finish(self, result: Any) -> fx.Graph:
        """The graph of a function that returned `result`."""
        map_aggregate(result, self._value)
        last = self.graph.output(self.create_arg(result))
        kept = {*self._effects, *self.graph.find_nodes(op="placeholder"), last}
        self.graph.eliminate_dead_code(kept.__contains__)
        return self.graph

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: Any, *_: Any, **__: Any
    ) -> Any:
        if _writes(kind, target) and isinstance(args[0], TracedValue) and _is_tensor(args[0]):
            return self._write(kind, target, args, kwargs)
        if kind == "call_method" and target in MAKERS and _is_tensor(args[0]):
            # Said so that no tensor is read: only its kind and place are asked.
            alike = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
            return self._record("call_function", MAKERS[target], args[1:], alike)
        return self._record(kind, target, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.stack_trace = f"{self._stack_trace}\n  {running_line()}"
        return node

    # Decisions.

    def to_bool(self, obj: Any) -> bool:
        value = self._decidable(obj)
        if isinstance(value, (tuple, list)):
            return bool(value)
        compare = operator.ne if value else operator.eq
        self._guard(obj, bool(value), lambda: self._call(compare, obj, type(value)(0)))
        return bool(value)

    def fix(self, obj: TracedValue) -> Any:
        """A size as a plain number: from here on it is what it was on the example."""
        value = self._decidable(obj)
        self._guard(obj, ("is", value), lambda: self._call(operator.eq, obj, value))
        return value

    def _decidable(self, obj: TracedValue) -> Any:
        self.decides = True
        if not obj.decides:
            raise Unfaithful("it decides on something that is no size")
        return obj.seen

    def _guard(self, obj: TracedValue, decided: Any, condition: Callable[[], Any]) -> None:
        if (obj.node, decided) not in self._guards:
            self._guards.add((obj.node, decided))
            where = line_of(running_line())
            message = (
                f"at this size {self._function} ({where}) takes another branch than on the "
                "example this model was exported with; export it again with an example of this size"
            )
            args = (condition().node, message)
            self._effects.add(self.create_node("call_function", require_size, args, {}))

    # Operations.

    def _call(self, function: Any, *args: Any) -> Any:
        return self._record("call_function", function, args, {})

    def _record(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Write an operation down and see what it makes."""
        operands: list[TracedValue] = []
        map_aggregate(
            (args, kwargs), lambda a: operands.append(a) if isinstance(a, TracedValue) else a
        )
        given: Any
        given, named = map_aggregate((args, kwargs), self._value)
        tensors = [operand for operand in operands if _is_tensor(operand)]
        versions = [operand.seen._version for operand in tensors]
        if kind == "call_method":
            seen = getattr(given[0], target)(*given[1:], **named)
        else:
            seen = target(*given, **named)
        node = super().create_proxy(kind, target, args, kwargs).node
        for operand, version in zip(tensors, versions, strict=True):
            if operand.seen._version != version:
                if operand.given or self._kin(operand):
                    raise Unfaithful("it writes in place into memory it shares")
                self._effects.add(node)
                if seen is operand.seen:
                    operand.node = node
                    return operand
        made = self._see(node, seen, decides=_decides(kind, target, args, operands))
        if target is operator.getitem and _is_tensor(made) and _is_tensor(args[0]):
            made.view_of = (args[0], args[1])
        return made

    def _see(self, node: fx.Node, value: Any, *, decides: bool) -> TracedValue:
        made = TracedValue(node, self, value, decides=decides)
        if _is_tensor(made):
            self._tensors.append(made)
        return made

    def _value(self, leaf: Any) -> Any:
        if isinstance(leaf, TracedValue):
            if leaf.stale:
                raise Unfaithful("it reads memory that was written through another view")
            return leaf.seen
        return leaf

    # Writes in place, which become operations that make a new tensor where memory is shared.

    def assign(self, tensor: TracedValue, index: Any, value: Any) -> None:
        """What `tensor[index] = value` does."""
        _items(index, tensor.seen)
        part = self._call(operator.getitem, tensor, index)
        fresh = self._record("call_method", "clone", (part,), {})
        filling = "copy_" if _is_tensor(value) else "fill_"
        filled = self._record("call_method", filling, (fresh, value), {})
        self._replace(tensor, self._scattered(tensor, index, filled))

    def _write(self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written: TracedValue = args[0]
        if not written.given and not self._kin(written):
            return self._record(kind, target, args, kwargs)
        fresh = self._record("call_method", "clone", (written,), {})
        self._replace(written, self._record(kind, target, (fresh, *args[1:]), kwargs))
        return written

    def _replace(self, tensor: TracedValue, new: TracedValue) -> None:
        """Let a tensor be another from here on, and what it is a view of with it."""
        kin = self._kin(tensor)
        while tensor.view_of is not None:
            base, index = tensor.view_of
            new = self._scattered(base, index, new)
            tensor.stale = True
            tensor = base
        for other in (*kin, tensor):
            if other.given:
                raise Unfaithful("it writes in place into what it is given")
            other.stale = other is not tensor
        tensor.node, tensor.seen = new.node, new.seen

    def _kin(self, tensor: TracedValue) -> list[TracedValue]:
        """The values that share memory with a tensor."""
        place, others = place_of(tensor.seen), (x for x in self._tensors if x is not tensor)
        return [other for other in others if not other.stale and place_of(other.seen) == place]

    def _scattered(self, base: TracedValue, index: Any, new: TracedValue) -> TracedValue:
        """A tensor with the part that an index takes of it replaced."""
        items = _items(index, base.seen)
        if not items:
            return new
        (dim, item), *rest = items
        if rest:
            part = self._call(operator.getitem, base, (*(slice(None),) * dim, item))
            gone = not isinstance(item, slice)
            inner: Any = [slice(None)] * part.seen.ndim
            for axis, other in rest:
                inner[axis - gone] = other
            new = self._scattered(part, tuple(inner), new)
        if isinstance(item, slice):
            bounds = (item.start, item.stop, 1 if item.step is None else item.step)
            return self._call(torch.slice_scatter, base, new, dim, *bounds)  # type: ignore[no-any-return]
        return self._call(torch.select_scatter, base, new, dim, item)  # type: ignore[no-any-return]


def _items(index: Any, tensor: Tensor) -> list[tuple[int, Any]]:
    """The axes that a basic index picks from, and what it picks there."""
    parts = list(index) if isinstance(index, tuple) else [index]
    for place, part in enumerate(parts):
        if part is ...:
            parts[place : place + 1] = [slice(None)] * (tensor.ndim - len(parts) + 1)
            break
    for part in parts:
        number = part.seen if isinstance(part, TracedValue) else part
        if not isinstance(part, slice) and (type(number) is not int):
            raise Unfaithful("it writes through an index that is no slice")
    return [
        (dim, part)
        for dim, part in enumerate(parts)
        if not isinstance(part, slice)
        or any(bound is not None for bound in (part.start, part.stop, part.step))
    ]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, TracedValue) and isinstance(value.seen, Tensor)


def _writes(kind: str, target: Any) -> bool:
    """Whether an operation writes into its first operand, by its name."""
    if kind == "call_method":
        return bool(target.endswith("_") and not target.endswith("__"))
    return target in WRITES.values() or target is operator.imatmul


def _decides(kind: str, target: Any, args: tuple[Any, ...], operands: list[TracedValue]) -> bool:
    """Whether what an operation makes is known from sizes alone."""
    if not any(_is_tensor(operand) for operand in operands):
        return all(operand.decides for operand in operands)
    if kind == "call_method":
        return target in (*SIZES, *COUNTS)
    return target is getattr and args[1] in SIZES
