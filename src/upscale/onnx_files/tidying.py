"""Nodes put in order, without those that nothing reads any more."""

from __future__ import annotations

from typing import Any

from upscale.errors import OnnxError


def still_used(nodes: list[Any], before: Any, graph: Any) -> list[Any]:
    """The nodes that an output needs, and those that none has ever needed, as they were."""
    read = {name for node in before.graph.node for name in node.input}
    read |= {own.name for own in before.graph.output}
    idle = {name for node in before.graph.node for name in node.output} - read
    needed = {own.name for own in graph.output}
    makers = {name: node for node in nodes for name in node.output if name}
    kept: set[int] = set()
    spared = [n for n in nodes if all(name in idle or not name for name in n.output)]
    waiting = [makers[name] for name in needed if name in makers]
    waiting += [n for n in spared if all(not i or i in makers or _given(i, graph) for i in n.input)]
    while waiting:
        node = waiting.pop()
        if id(node) not in kept:
            kept.add(id(node))
            waiting += [makers[name] for name in node.input if name in makers]
    return [node for node in nodes if id(node) in kept]


def _given(name: str, graph: Any) -> bool:
    return any(own.name == name for own in (*graph.initializer, *graph.input))


def in_order(nodes: list[Any]) -> list[Any]:
    """The nodes so that each stands behind what it reads; those that do stay where they are."""
    made = {name for node in nodes for name in node.output if name}
    known: set[str] = set()
    ordered, waiting = list[Any](), list(nodes)
    while waiting:
        later = []
        for node in waiting:
            if all(name not in made or name in known for name in node.input):
                ordered.append(node)
                known.update(node.output)
            else:
                later.append(node)
        if len(later) == len(waiting):
            raise OnnxError("the edited graph goes in a circle")
        waiting = later
    return ordered
