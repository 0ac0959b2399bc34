"""Norms: the BatchNorm that belongs to a layer, if one alone reads what the layer makes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from upscale.capture import Captured, Example, capture, home
from upscale.capture.symbolic_trace import trace_without_example
from upscale.errors import SelectionError
from upscale.model.layers import computes_weight, layers

BATCH_NORM = nn.modules.batchnorm._BatchNorm
# What can be asked of a tensor without reading its numbers.
QUERIES = {"shape", "size", "sym_size.int", "dim", "ndim", "numel", "dtype", "device"}


def find_norms(model: nn.Module, example: Any = None) -> dict[str, tuple[str, ...]]:
    """For each layer with normalisation of its own, the names of its BatchNorms.

    A BatchNorm belongs to a layer if it reads nothing else, and if nothing else reads what the
    layer makes: `conv → bn` and `conv → identity → bn`, but not `bn(y) + y`. A layer called
    several times has one after each call, or none counts.
    """
    if not any(isinstance(module, BATCH_NORM) for module in model.modules()):
        return {}
    try:
        if example is None:
            return norms_of(model, trace_without_example(model))
        captured = capture(model, Example.of(example), numbers=False)
    except Exception as error:  # tracing runs the caller's code, which may raise anything
        hint = "pass example=, or make" if example is None else "make"
        raise SelectionError(
            f"{type(model).__name__} cannot be traced to find its layers' BatchNorms; "
            f"{hint} the selection with after='layer'"
        ) from error
    return norms_of(model, captured.graph, captured)


def norms_of(
    model: nn.Module, graph: fx.Graph, captured: Captured | None = None
) -> dict[str, tuple[str, ...]]:
    """For each layer with normalisation of its own, its BatchNorms, as a graph shows them.

    A BatchNorm works along axis 1, and a linear layer's channels are last: of `(batch, tokens,
    channels)` it would normalise the tokens. If nothing was captured, layers are taken to make
    vectors.
    """
    calls = _Calls(graph, model)
    after: dict[int, list[str | None]] = defaultdict(list)
    own = {name: layer for name, layer in layers(model).items() if not computes_weight(layer)}
    for call, nodes in calls.nodes.items():
        if call.module in own:
            layer = own[call.module]
            beside = isinstance(layer, nn.Linear) and captured and _axes(nodes, captured) > 2
            after[id(layer)].append(None if beside else calls.norm_after(call))
    return {
        name: tuple(str(norm) for norm in after[id(layer)])
        for name, layer in own.items()
        if id(layer) in after and None not in after[id(layer)]
    }


def _axes(nodes: list[fx.Node], captured: Captured) -> int:
    """How many axes the tensors that nodes make have at most."""
    made = [value for node in nodes for value in captured.observed[node.name].makes]
    return max(len(captured.values[value].shape) for value in made)


class _Call(NamedTuple):
    """One call of a module; `key` tells it from its other calls."""

    module: str
    key: object


class _Calls:
    """The calls of modules in a graph: a node of its own each, or the operations within."""

    def __init__(self, graph: fx.Graph, model: nn.Module) -> None:
        self.modules = dict(model.named_modules(remove_duplicate=False))
        self.nodes: dict[_Call, list[fx.Node]] = defaultdict(list)
        self._call_of: dict[fx.Node, _Call] = {}
        for node in graph.nodes:
            module, stack = home(node), list(node.meta.get("nn_module_stack", ()))
            if module is not None and node.op.startswith("call") and module in self.modules:
                call = _Call(module, node if node.op == "call_module" else stack[-1])
                self._call_of[node] = call
                self.nodes[call].append(node)
        self._times = Counter(id(self.modules[call.module]) for call in self.nodes)

    def norm_after(self, call: _Call) -> str | None:
        """The BatchNorm that alone reads what a call makes, and nothing else."""
        readers = {reader for node in self.nodes[call] for reader in self._readers(node, call)}
        reader = readers.pop() if len(readers) == 1 else None
        if reader is None or not _is_norm(norm := self.modules[reader.module]):
            return None
        return reader.module if self._times[id(norm)] == 1 else None

    def _readers(self, node: fx.Node, call: _Call) -> Iterator[_Call | None]:
        """Who reads a node's values outside a call; `None` stands for code between modules."""
        for user in node.users:
            if self._hands_on(user):
                yield from self._readers(user, call)
            elif _query(user) not in QUERIES and self._call_of.get(user) != call:
                yield self._call_of.get(user)

    def _hands_on(self, node: fx.Node) -> bool:
        """Whether a node returns the very tensor that it is given."""
        if node.op == "call_module":
            module = self.modules.get(str(node.target))
            if isinstance(module, nn.modules.dropout._DropoutNd):
                return not module.training
            return type(module) is nn.Identity
        if "dropout" in getattr(node.target, "__name__", ""):
            return node.kwargs.get("training") is False
        return node.target is torch.ops.aten.alias.default


def _query(node: fx.Node) -> str:
    """What a node asks of a tensor, if it asks by name."""
    if node.target is getattr:
        return str(node.args[1])
    return str(getattr(node.target, "__name__", node.target))


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORM) and type(module).__module__.startswith("torch.nn.")
