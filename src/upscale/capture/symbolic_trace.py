"""Trace a model symbolically, with `torch.fx`: batch and image size stay free.

The model's own code runs once, on a twin of the model and on proxies in place of tensors:

    def forward(self, x):                  x = placeholder
        x = self.conv(x)          ──►      conv = call_module[conv](x)
        x += 1                             add = operator.add(conv, 1)   # marked: it may write
        return x                           return add
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from upscale.capture.attention import is_plain_self_attention, self_attention
from upscale.capture.changed_attributes import Watch, check_memory, check_written
from upscale.capture.example import Example, tensors_in
from upscale.capture.in_place import AUGMENTED, NO_GRAD, WRITES, put_writes_back, write_bound
from upscale.capture.origin import running_line
from upscale.capture.records import PACKS, maker_of
from upscale.errors import CaptureError, ExampleError
from upscale.model.layers import copied, stock_layers, tensors

# What a proxy has of its own; to set anything else would be lost.
SET = ("tracer", "node", "root", "attr", "_node")


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph, what it refers to that the model does not own, and how it was made.

    `doubted` nodes call functions that may do something else on another input. If `baked`,
    what is computed from buffers may be a constant of the graph. `changed` are the tensors of
    the model that a call was seen to change, if one was made, with the line that wrote them.
    `fixed` says which sizes of the inputs the graph takes for granted, and why.
    """

    graph: fx.Graph
    extras: Mapping[str, Any]
    way: str
    doubted: frozenset[str] = frozenset()
    baked: bool = False
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
    write_bound(graph, _bound_buffers(twin))
    check_memory(model, example, twin)
    added = (set(vars(twin)) | set(twin._buffers)) - set(vars(model)) - set(model._buffers)
    constants = {n: getattr(twin, n) for n in sorted(added) if isinstance(getattr(twin, n), Tensor)}
    return Traced(graph, constants, "symbolic", baked=baked)


def trace_without_example(model: nn.Module) -> fx.Graph:
    """Trace with `torch.fx`, inputs that have a default at it."""
    taken = inspect.signature(model.forward).parameters.values()
    return _trace(model, {p.name: p.default for p in taken if p.default is not p.empty})[0]


def twin_of(
    model: nn.Module, replace: Callable[[Tensor], Tensor] = torch.clone
) -> tuple[nn.Module, dict[int, Tensor]]:
    """A copy of a model with other tensors, and these by the identity of those they replace.

    What runs the model's code runs it on a twin: it may write to tensors and set attributes.
    """
    twins: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        new = replace(tensor.detach())
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad)
        twins[id(tensor)] = new
    return copied(model, dict(twins)), twins


def _trace(model: nn.Module, fixed: dict[str, Any]) -> tuple[fx.Graph, nn.Module, bool]:
    """A graph, the twin of the model that was traced, and whether buffers were constants there."""
    try:
        return *_trace_twin(model, fixed, proxy_buffers=True), False
    except Exception:  # the model's own code runs on proxies and may raise anything
        return *_trace_twin(model, fixed, proxy_buffers=False), True


def _trace_twin(
    model: nn.Module, fixed: dict[str, Any], *, proxy_buffers: bool
) -> tuple[fx.Graph, nn.Module]:
    twin = _with_forward_in_class(twin_of(model)[0])
    before = tensors(twin)
    tracer = _Tracer(stock_layers(model), proxy_buffers=proxy_buffers)
    # Whether the model's own code records gradients, whatever the caller's does.
    with torch.enable_grad(), Watch(before, _trace_twin.__code__) as watch:
        graph = tracer.trace(twin, concrete_args=fixed or None)
    check_written(tensors(model), tensors(twin), before, watch.lines)
    return graph, twin


def _with_forward_in_class(twin: nn.Module) -> nn.Module:
    """The twin with a `forward` of its own moved to a class of its own; changed in place.

    `torch.fx` traces the forward of a class, whatever the instance has in its place.
    """
    forward = vars(twin).pop("forward", None)
    if forward is not None:
        if getattr(forward, "__self__", None) is not twin:
            raise CaptureError("its forward was replaced by a function that is no method of it")
        kind = type(twin)
        twin.__class__ = type(kind.__name__, (kind,), {"forward": forward.__func__})
    return twin


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


class _Tracer(fx.Tracer):
    """Looks into self-attention, and not into the layers of `stock`.

    These may be of a class that derives from torch's and computes as it does.
    """

    def __init__(self, stock: Set[str], *, proxy_buffers: bool) -> None:
        super().__init__()
        self._stock = stock
        self.proxy_buffer_attributes = proxy_buffers

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        stock = module_qualified_name in self._stock
        return stock or bool(super().is_leaf_module(m, module_qualified_name))

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_arg(self, a: Any) -> Any:
        maker = maker_of(a)
        if maker is None:
            return super().create_arg(a)
        args, kwargs = super().create_arg(maker.args), super().create_arg(maker.keywords)
        node = self.create_node("call_function", maker.func, args, kwargs)
        node.meta[PACKS] = True
        return node

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        if not torch.is_grad_enabled():
            node.meta[NO_GRAD] = True
        node.stack_trace = running_line(trace_symbolically.__code__)
        return node

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if isinstance(m, nn.MultiheadAttention) and is_plain_self_attention(m, args, kwargs):
            return self_attention(m, args[0])
        return super().call_module(m, forward, args, kwargs)


class _Proxy(fx.Proxy):
    """Marks what augmented assignments make: `x += y` is traced as `x + y`, and may write to x."""

    def __getattr__(self, k: str) -> fx.proxy.Attribute:
        return _Attribute(self, k)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in SET:
            raise TypeError(f"a graph cannot set {name} of a tensor")
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write into part of a buffer; elsewhere a graph would not know who reads it later."""
        if self.node.op != "get_attr":
            raise TypeError("a proxy does not support item assignment")
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


def _marking(operation: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], Any]:
    def augmented(proxy: fx.Proxy, other: Any) -> Any:
        made = operation(proxy, other)
        made.node.meta[AUGMENTED] = True
        return made

    return augmented


for _operation, _writing in WRITES.items():
    setattr(_Proxy, f"__{_writing.__name__}__", _marking(_operation))


class _Attribute(_Proxy, fx.proxy.Attribute):
    """What `x.T` or `x.data` gives, which may share memory with x."""
