"""The pass: the unpruned and the pruned network run side by side, node by node, over all batches.

    node       unpruned             pruned
    conv1      y* = W* x*           fitted: W minimises ‖W x − y*‖², then y = W x
    bn1        …                    …
    conv2      …                    reads what the fitted conv1 really gives

Each layer is refitted when it is met, on what the pruned network gives it by then; what follows
sees the layer as it will be. A value is kept until its last reader has run.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from upscale.capture import Captured
from upscale.recovery.shelf import Shelf

PRUNED, UNPRUNED = "pruned", "unpruned"


class SideBySide:
    """Two networks of one graph, and what they made of every batch so far.

    `apart` are the nodes of which the two make different things; all others are run once.
    """

    def __init__(
        self,
        captured: Captured,
        unpruned: nn.Module,
        pruned: nn.Module,
        batches: Sequence[Sequence[Any]],
        shelf: Shelf,
    ) -> None:
        self.nodes: list[fx.Node] = list(captured.graph.nodes)
        self.batches = range(len(batches))
        self.apart: set[str] = set()
        self._models = {UNPRUNED: unpruned, PRUNED: pruned}
        self._extras, self._inputs, self._shelf = captured.extras, batches, shelf
        self._places = {n.name: at for at, n in enumerate(self.nodes) if n.op == "placeholder"}
        last = {operand: at for at, node in enumerate(self.nodes) for operand in node.all_input_nodes}
        self._leaving: dict[int, list[str]] = defaultdict(list)
        for operand, at in last.items():
            self._leaving[at].append(operand.name)

    def value(self, network: str, node: str, batch: int) -> Any:
        """What a network's node made of a batch."""
        return self._shelf.get((network if node in self.apart else UNPRUNED, node, batch))

    def run(self, network: str, node: fx.Node) -> None:
        """Run a node on every batch."""
        for batch in self.batches:
            self._shelf.put((network, node.name, batch), self.made(network, node, batch))

    def made(self, network: str, node: fx.Node, batch: int) -> Any:
        """What a node makes of a batch; nothing is kept."""
        if node.op == "placeholder":
            return self._inputs[batch][self._order(node)]
        if node.op == "get_attr":
            return self._attribute(network, str(node.target))

        def fetched(operand: fx.Node) -> Any:
            return self.value(network, operand.name, batch)

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), fetched)
        target: Any = node.target
        if node.op == "call_module":
            return self._models[network].get_submodule(target)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def diverge(self, node: fx.Node) -> None:
        """Let the two networks' nodes make different things from here on."""
        self.apart.add(node.name)

    def differs(self, node: fx.Node) -> bool:
        """Whether what a node reads differs between the networks."""
        return any(operand.name in self.apart for operand in node.all_input_nodes)

    def forget(self, at: int) -> None:
        """Drop what has no reader after the node at a place."""
        for name in self._leaving[at]:
            for network in self._models:
                for batch in self.batches:
                    self._shelf.drop((network, name, batch))

    def _order(self, node: fx.Node) -> int:
        return list(self._places).index(node.name)

    def _attribute(self, network: str, path: str) -> Any:
        if path in self._extras:
            return self._extras[path]
        owner, _, own = path.rpartition(".")
        return getattr(self._models[network].get_submodule(owner), own)


def inputs_of(graph: fx.Graph, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """A batch's inputs in the order of a graph's placeholders."""
    if isinstance(graph._codegen, fx.graph._PyTreeCodeGen):
        return list(graph.process_inputs(*args, **kwargs))
    bound = inspect.signature(model.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return [bound.arguments[str(node.target)] for node in graph.find_nodes(op="placeholder")]


__all__ = ["Callable", "Iterator", "SideBySide", "Tensor", "inputs_of", "torch"]
