"""What is being built: the new graph, what it refers to, and where each value is found in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

# What every graph module has under a name of its own.
TAKEN = frozenset(dir(fx.GraphModule({}, fx.Graph())))


@dataclass(slots=True)
class Building:
    """A graph that grows.

    `held` is what the graph refers to by its paths, `values` what makes the node in which a value
    is found, `results` what nodes of the old graph give in this one; `views` are nodes whose
    memory is another's.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    held: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Callable[[], fx.Node]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    views: set[fx.Node] = field(default_factory=set)

    def bind(self, value: str, node: fx.Node) -> None:
        """Say in which node a value is found."""
        self.values[value] = lambda: node

    def view(self, node: fx.Node) -> fx.Node:
        """A node whose memory is another's."""
        self.views.add(node)
        return node

    def used(self) -> dict[str, Any]:
        """What the graph still refers to, both under names that no graph module has for itself."""
        named = set()
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                named.add(node.target)
                node.target = unclashing(node.target)
        return {unclashing(path): thing for path, thing in self.held.items() if path in named}


def unclashing(path: str) -> str:
    """The path that something has in an export: graph modules have names of their own."""
    first, dot, rest = path.partition(".")
    return f"{first}_{dot}{rest}" if first in TAKEN else path
