"""Guards that `torch.export` puts into a model, written out as nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx, nn
from torch.fx.proxy import GraphAppendingTracer


def write_out_guards(graph: fx.Graph, extras: Mapping[str, Any]) -> None:
    """Replace calls of guards by what they assert, where that can be traced.

    Guards are functions whose code nobody keeps; as nodes they can be saved and scripted.
    """
    for node in graph.find_nodes(op="call_module"):
        guards = extras.get(str(node.target))
        written = _written_out(guards, len(node.args)) if isinstance(guards, nn.Module) else None
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
        guards.forward(*given)
    except (
        fx.proxy.TraceError,
        TypeError,
    ):  # it decides on sizes, or asks for more than a proxy is
        return None
    return graph
