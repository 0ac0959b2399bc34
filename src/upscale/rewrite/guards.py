"""Guards that `torch.export` puts into a model, written out as nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import GraphAppendingTracer

from upscale.capture.size_guards import Guards, require_size, said_of_guard


def write_out_guards(graph: fx.Graph, extras: Mapping[str, Any]) -> None:
    """Replace calls of guards by what they check, where that can be traced.

    Guards are functions whose code nobody keeps; as nodes they can be saved and scripted.
    """
    for node in graph.find_nodes(op="call_module"):
        held = extras.get(str(node.target))
        written = _written_out(held.guards, len(node.args)) if isinstance(held, Guards) else None
        if written is not None and not node.users:
            inputs = dict(zip(written.find_nodes(op="placeholder"), node.args, strict=True))
            with graph.inserting_before(node):
                graph.graph_copy(written, inputs)
            graph.erase_node(node)


def _written_out(guards: nn.Module, count: int) -> fx.Graph | None:
    """What guards do to so many inputs; nothing if it is more than arithmetic on sizes."""
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    given = [fx.Proxy(graph.placeholder(f"guarded_{index}"), tracer) for index in range(count)]
    try:
        _traceable(guards.forward)(*given)
    except (fx.proxy.TraceError, TypeError):
        return None  # it decides on sizes, or asks for more than a proxy is
    for node in graph.find_nodes(op="call_function", target=torch._assert):
        condition, text = node.args
        node.target, node.args = require_size, (condition, said_of_guard(str(text)))
    return graph


def _traceable(guards: Callable[..., Any]) -> Callable[..., Any]:
    """The function with minima and maxima that take what stands for a size."""
    # torch wraps it once, to be compiled or not; without that it is as torch wrote it.
    plain = inspect.getclosurevars(guards).nonlocals.get("func", guards)
    if not isinstance(plain, FunctionType):
        return guards
    known = {**plain.__globals__, "max": _recorded(max), "min": _recorded(min)}
    return FunctionType(
        plain.__code__, known, plain.__name__, plain.__defaults__, plain.__closure__
    )


def _recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    def record(*numbers: Any) -> Any:
        traced = next((n for n in numbers if isinstance(n, fx.Proxy)), None)
        if traced is None:
            return function(*numbers)
        return traced.tracer.create_proxy("call_function", function, numbers, {})

    return record
