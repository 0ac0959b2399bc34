"""Two networks of one graph, run side by side over all batches, node by node.

    node       unpruned             pruned
    conv1      y* = W* x*           fitted: W minimises ‖W x − y*‖², then y = W x
    bn1        …                    …
    conv2      …                    reads what the fitted conv1 really gives

Up to the first node that differs there is one value for both. A value is kept until its last
reader has run.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx._pytree import tree_flatten_spec
from torch.utils._pytree import tree_map_only, tree_unflatten

from upscale.capture import Captured, Example
from upscale.errors import BatchError
from upscale.recovery import processes
from upscale.recovery.shelf import Key, Shelf

PRUNED, UNPRUNED = "pruned", "unpruned"
Mask = Callable[[Any], Any]


class SideBySide:
    """What two networks made of every batch so far.

    `apart` are the nodes of which the two make different things; all others are run once. `masks`
    are laid on what nodes of the pruned one make.
    """

    def __init__(
        self,
        captured: Captured,
        models: Mapping[str, nn.Module],
        batches: Sequence[Example],
        shelf: Shelf,
        masks: Mapping[str, Mask] | None = None,
    ) -> None:
        self.nodes: list[fx.Node] = list(captured.graph.nodes)
        self.batches = range(len(batches))
        self.apart: set[str] = set()
        self._models, self._shelf, self._masks = models, shelf, masks or {}
        self._extras, self._observed = captured.extras, captured.observed
        graph, model = captured.graph, models[UNPRUNED]
        places = graph.find_nodes(op="placeholder")
        taken = [_inputs(graph, model, example) for example in batches]
        self._inputs = {node.name: [own[at] for own in taken] for at, node in enumerate(places)}
        self._leaving: dict[int, list[str]] = defaultdict(list)
        read = {
            operand: at for at, node in enumerate(self.nodes) for operand in node.all_input_nodes
        }
        for operand, at in read.items():
            self._leaving[at].append(operand.name)

    @cached_property
    def batches_of_all(self) -> int:
        """How many batches there are in all processes."""
        return int(processes.summed(torch.tensor(len(self.batches))))

    def value(self, network: str, node: str, batch: int) -> Any:
        """What a network's node made of a batch."""
        return self._shelf.get(self._key(network, node, batch))

    def run(self, network: str, node: fx.Node) -> None:
        """Run a node on every batch, and keep what it makes."""
        for batch in self.batches:
            made = self._made(network, node, batch)
            if network == PRUNED and node.name in self._masks:
                made = self._masks[node.name](made)
            self._shelf.put((network, node.name, batch), made)

    def differs(self, node: fx.Node) -> bool:
        """Whether what a node reads or makes differs between the networks, weights aside."""
        return node.name in self._masks or any(
            operand.name in self.apart for operand in node.all_input_nodes
        )

    def forget(self, at: int) -> None:
        """Drop what has no reader after the node at a place."""
        for name in self._leaving[at]:
            for network in self._models:
                for batch in self.batches:
                    self._shelf.drop((network, name, batch))

    def copies(self, first: int, last: int) -> dict[Key, Any]:
        """Copies of what nodes in a range read from before it, if any of them writes in place."""
        nodes = self.nodes[first : last + 1]
        if not any(self._observed[node.name].writes for node in nodes):
            return {}
        within = {node.name for node in nodes}
        outside = {x.name for node in nodes for x in node.all_input_nodes} - within
        keys = {
            self._key(n, name, b) for n in self._models for name in outside for b in self.batches
        }
        return {key: tree_map_only(Tensor, Tensor.clone, self._shelf.get(key)) for key in keys}

    def restore(self, copies: Mapping[Key, Any]) -> None:
        """Put copies back in the place of what was written to."""
        for key, value in copies.items():
            self._shelf.put(key, value)

    def _key(self, network: str, node: str, batch: int) -> Key:
        return (network if node in self.apart else UNPRUNED, node, batch)

    def _made(self, network: str, node: fx.Node, batch: int) -> Any:
        if node.op == "placeholder":
            # A model may write into what it is given; the caller's batches stay as they are.
            given = self._inputs[node.name][batch]
            return tree_map_only(Tensor, Tensor.clone, given) if self._written(node) else given
        if node.op == "get_attr":
            return self._attribute(network, str(node.target))
        args, kwargs = fx.node.map_arg(
            (node.args, node.kwargs), lambda operand: self.value(network, operand.name, batch)
        )
        target: Any = node.target
        if node.op == "call_module":
            return self._attribute(network, target)(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _written(self, node: fx.Node) -> bool:
        return any(self._observed[user.name].writes for user in node.users)

    def _attribute(self, network: str, path: str) -> Any:
        if path in self._extras:
            return self._extras[path]
        return attrgetter(path)(self._models[network])


def _inputs(graph: fx.Graph, model: nn.Module, example: Example) -> Sequence[Any]:
    """A batch's inputs in the order of a graph's placeholders."""
    bound = inspect.signature(model.forward).bind(*example.args, **example.kwargs)
    if not isinstance(graph._codegen, fx.graph._PyTreeCodeGen):
        bound.apply_defaults()
        return [bound.arguments[str(node.target)] for node in graph.find_nodes(op="placeholder")]
    info, given = graph._codegen.pytree_info, bound.arguments
    if info.orig_args is None or set(info.orig_args) != given.keys():
        raise BatchError(
            f"a batch gives {', '.join(given)} and another {', '.join(info.orig_args or ())}; "
            "pass the same inputs in every batch"
        )
    # However a batch names its inputs, the graph wants them as the first one did.
    by_place, by_name = tree_unflatten(list(range(info.in_spec.num_leaves)), info.in_spec)
    args = tuple(given[name] for name in info.orig_args[: len(by_place)])
    return tree_flatten_spec((args, {name: given[name] for name in by_name}), info.in_spec)
