"""Trace a model symbolically, with `torch.fx`: batch and image size stay free.

The model's own code runs once, on a twin of the model and on proxies in place of tensors:

    def forward(self, x):                  x = placeholder
        x = self.conv(x)          ──►      conv = call_module[conv](x)
        x += 1                             add = operator.add(conv, 1)   # marked: it may write
        return x                           return add
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from upscale.capture.captured import (
    Example,
    place_of,
    plain_tensors,
    schema_of,
    tensors_in,
)
from upscale.capture.in_place import AUGMENTED, put_writes_back, write_bound
from upscale.capture.tracer import Tracer, line_of, running_line
from upscale.errors import CaptureError, ExampleError
from upscale.model.layers import copied, equal, modules_of, stock_layers, tensors

Tensors: TypeAlias = Mapping[str, Tensor]
# What tracing itself leaves on what it traces.
CONSTANT = re.compile(r"_tensor_constant\d+$")
# What every module has, in which buffers and layers are.
OWN = frozenset(vars(nn.Module()))


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph, what it refers to that the model does not own, and how it was made.

    `doubted` nodes call functions that may do something else on another input. If `baked`,
    what is computed from buffers may be a constant of the graph. `attributes` are those that
    the model's code changed while it was traced; `changed` are the tensors of the model that a
    call was seen to change, if one was made, with the line that wrote them. `fixed` says which
    sizes of the inputs the graph takes for granted, and why.
    """

    graph: fx.Graph
    extras: Mapping[str, Any]
    way: str
    doubted: frozenset[str] = frozenset()
    baked: bool = False
    attributes: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()

    def inputs(self, model: nn.Module, example: Example) -> list[Any]:
        """The example's inputs in the order of the graph's placeholders."""
        if self.way == "export":
            return list(tree_leaves((example.args, dict(example.kwargs))))
        given = bind(model, example).arguments
        return [given[str(n.target)] for n in self.graph.find_nodes(op="placeholder")]


def bind(model: nn.Module, example: Example) -> inspect.BoundArguments:
    """The example as arguments of the model's forward, defaults filled in."""
    try:
        bound = inspect.signature(model.forward).bind(*example.args, **example.kwargs)
    except TypeError as error:
        said = f"{type(model).__name__}.forward does not take the example: {error}"
        raise ExampleError(said) from error
    bound.apply_defaults()
    return bound


def calls_python(node: fx.Node) -> bool:
    """Whether a node calls a function that is neither torch's nor Python's own (`fx.wrap`)."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, FunctionType):
        return False
    return target.__module__.partition(".")[0] not in ("torch", "upscale")


def trace_symbolically(model: nn.Module, example: Example) -> Traced:
    """Trace with `torch.fx`; inputs that the example leaves at a default become constants.

    Buffers stay buffers where the model's code lets them; else what is computed from them
    becomes a constant.
    """
    arguments = bind(model, example).arguments
    free = {name for name, value in arguments.items() if tensors_in(value)}
    fixed = {name: value for name, value in arguments.items() if name not in free}
    graph, twin, baked = _trace(model, fixed)
    _drop_fixed_inputs(graph, free)
    if any(AUGMENTED in node.meta for node in graph.nodes):
        put_writes_back(graph, twin)
    if bound := _bound_buffers(twin):
        write_bound(graph, bound)
    added = (set(vars(twin)) | set(twin._buffers)) - set(vars(model)) - set(model._buffers)
    constants = {n: getattr(twin, n) for n in sorted(added) if isinstance(getattr(twin, n), Tensor)}
    changed = tuple(changed_attributes(model, twin))
    return Traced(graph, constants, "symbolic", baked=baked, attributes=changed)


def trace_without_example(model: nn.Module) -> fx.Graph:
    """Trace with `torch.fx`, inputs that have a default at it."""
    taken = inspect.signature(model.forward).parameters.values()
    return _trace(model, {p.name: p.default for p in taken if p.default is not p.empty})[0]


def twin_of(
    model: nn.Module, replace: Callable[[Tensor], Tensor] = torch.clone, *, lend: bool = False
) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy of a model with other tensors, and these by every name they have.

    What runs the model's code runs it on a twin: it may write to tensors and set attributes. One
    that is only to look at parameters may be `lend` the memory of those that train.
    """
    own, twins = tensors(model), dict[int, Any]()
    for tensor in own.values():
        if id(tensor) not in twins:
            lent = lend and tensor.requires_grad and tensor.is_leaf
            new = tensor.detach() if lent else replace(tensor.detach())
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            twins[id(tensor)] = new
    return copied(model, dict(twins)), {name: twins[id(tensor)] for name, tensor in own.items()}


def _trace(model: nn.Module, fixed: dict[str, Any]) -> tuple[fx.Graph, nn.Module, bool]:
    """A graph, the twin of the model that was traced, and whether buffers were constants there.

    Most code never looks at numbers: it is traced on lent parameters first, since copying them all
    takes longer than tracing. Code that does gets its own.
    """
    try:
        with suppress(Touched):
            return *_trace_twin(model, fixed, proxy_buffers=True, lend=True), False
        return *_trace_twin(model, fixed, proxy_buffers=True), False
    except Exception:  # the model's own code runs on proxies and may raise anything
        return *_trace_twin(model, fixed, proxy_buffers=False), True


def _trace_twin(
    model: nn.Module, fixed: dict[str, Any], *, proxy_buffers: bool, lend: bool = False
) -> tuple[fx.Graph, nn.Module]:
    own = tensors(model)
    lent = own if lend else {}
    twin, _ = twin_of(model, lend=lend)
    before = tensors(twin)  # not those given to it: a class may copy its modules in its own way
    _move_forward_to_class(twin)
    tracer = Tracer(stock_layers(model), _trace_twin.__code__, proxy_buffers=proxy_buffers)
    # Whether the model's own code records gradients, whatever the caller's does.
    with torch.enable_grad(), Watch(before, _trace_twin.__code__, lent=lent) as watch:
        try:
            graph = tracer.trace(twin, concrete_args=fixed or None)
        finally:
            if watch.touched:  # the model's own code may have caught what was raised then
                raise Touched
    check_written(own, tensors(twin), before, watch.lines)
    return graph, twin


def _move_forward_to_class(twin: nn.Module) -> None:
    """Give a twin with a `forward` of its own a class that has it.

    `torch.fx` traces the forward of a class, whatever the instance has in its place.
    """
    forward = vars(twin).pop("forward", None)
    if forward is not None:
        if getattr(forward, "__self__", None) is not twin:
            raise CaptureError("its forward was replaced by a function that is no method of it")
        kind = type(twin)
        twin.__class__ = type(kind.__name__, (kind,), {"forward": forward.__func__})


def _bound_buffers(twin: nn.Module) -> dict[str, fx.Node]:
    """The buffers that the traced code bound to something it computed, by path."""
    return {
        f"{prefix}.{name}" if prefix else name: value.node
        for prefix, module in twin.named_modules()
        for name, value in module._buffers.items()
        if isinstance(value, fx.Proxy)
    }


def _drop_fixed_inputs(graph: fx.Graph, free: set[str]) -> None:
    """Inputs the example leaves at a default are part of the model, not of its signature."""
    for node in graph.find_nodes(op="placeholder"):
        if node.target not in free:
            doomed = [node]
            for user in doomed:
                doomed.extend(user.users)
            if all(user.op != "output" for user in doomed):
                for user in reversed(dict.fromkeys(doomed)):
                    graph.erase_node(user)


class Touched(Exception):
    """Something was to be done with the memory of a tensor that is only lent."""


class Watch(TorchDispatchMode):
    """Notes the line that first writes to each tensor of a model, while its code runs.

    What reads or writes `lent` memory is not performed: it raises `Touched`.
    """

    def __init__(self, watched: Tensors, within: CodeType, *, lent: Tensors | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: dict[str, str] = {}
        self.touched = False
        self._names = {place_of(tensor): name for name, tensor in watched.items()}
        self._lent = {place_of(tensor) for tensor in (lent or {}).values()}
        self._within = within

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = plain_tensors((args, kwargs)) if self._lent else ()
        if any(place_of(tensor) in self._lent for tensor in given):
            self.touched = True
            raise Touched
        for tensor in schema_of(func).written_in(args, kwargs or {}):
            name = self._names.get(place_of(tensor))
            if name is not None and (line := line_of(running_line(self._within))):
                self.lines.setdefault(name, line)
        return func(*args, **(kwargs or {}))


def check_written(model: Tensors, twin: Tensors, before: Tensors, lines: Mapping[str, str]) -> None:
    """Raise if tracing a twin of a model changed a tensor of it: the graph lacks such a write.

    `before` are the tensors that the twin had, `lines` those that wrote to them.
    """
    for name, tensor in model.items():
        now: Any = twin.get(name)
        changed = now is not before[name]
        if not changed and place_of(now) != place_of(tensor):  # else it is lent, and was not met
            changed = not equal(now, tensor)
        if changed and not isinstance(now, fx.Proxy):  # which the graph has
            raise CaptureError(unseen(name, lines.get(name, "")))


def unseen(name: str, line: str) -> str:
    """What is said of a write that a graph lacks."""
    at = f" at {line}" if line else ""
    return (
        f"forward writes to {name}{at} in a way that no graph shows; write to a buffer by its "
        "name, as in self.buffer.copy_(...), and to parameters outside of forward"
    )


def changed_attributes(model: nn.Module, twin: nn.Module) -> list[str]:
    """The attributes, by path, that a twin has otherwise than its model."""
    modules = modules_of(model)
    changed = []
    for path, module in modules_of(twin).items():
        if path not in modules:
            changed.append(path)
            continue
        here, there = (
            {**{k: v for k, v in vars(m).items() if k not in OWN}, **dict.fromkeys(m._buffers)}
            for m in (module, modules[path])
        )
        for name in sorted(here.keys() | there.keys()):
            if path == "" and CONSTANT.match(name):
                continue
            if name not in here or name not in there or not _same(here[name], there[name], {}):
                changed.append(f"{path}.{name}" if path else name)
    return changed


def _same(one: Any, other: Any, met: dict[int, Any]) -> bool:
    """Whether two things are equal, as far as can be told."""
    if one is other or met.get(id(one)) is other:
        return True
    if type(one) is not type(other):
        return False
    met[id(one)] = other
    if isinstance(one, Tensor):
        return equal(one, other)
    if isinstance(one, nn.Module):
        return True  # looked at on its own
    if isinstance(one, (Set, int, float, complex, str, bytes)):
        return bool(one == other) or (one != one and other != other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[k], other[k], met) for k in one)
    if isinstance(one, Sequence):
        return len(one) == len(other) and all(map(lambda a, b: _same(a, b, met), one, other))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if hasattr(one, "__dict__") and not callable(one):
        return _same(vars(one), vars(other), met)
    return True
