"""Norms: the BatchNorm that belongs to a layer, if one alone reads what the layer makes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from torch import fx, nn

from upscale.capture.example import Example
from upscale.capture.export_trace import trace_by_export
from upscale.capture.origin import home
from upscale.capture.symbolic_trace import trace_symbolically, trace_without_example
from upscale.errors import SelectionError
from upscale.subject.layers import computes_weight, layers

BATCH_NORM = nn.modules.batchnorm._BatchNorm


def find_norms(model: nn.Module, example: Any = None) -> dict[str, tuple[str, ...]]:
    """For each layer with normalisation of its own, the names of its BatchNorms.

    A BatchNorm belongs to a layer if it reads nothing else, and if nothing else reads what the
    layer makes. A layer called several times has one after each call, or none counts.
    """
    if not any(isinstance(module, BATCH_NORM) for module in model.modules()):
        return {}
    return norms_of(model, _graph(model, example))


def norms_of(model: nn.Module, graph: fx.Graph) -> dict[str, tuple[str, ...]]:
    """For each layer with normalisation of its own, its BatchNorms, as a graph shows them."""
    called = _called(graph)
    modules = dict(model.named_modules(remove_duplicate=False))
    names = {id(module): name for name, module in reversed(modules.items())}
    calls = Counter(id(modules[name]) for name in called.values() if name in modules)
    after: dict[str, list[str | None]] = defaultdict(list)
    own = {name: layer for name, layer in layers(model).items() if not computes_weight(layer)}
    for node, name in called.items():
        if name in own:
            reader = called.get(next(iter(node.users))) if len(node.users) == 1 else None
            once = reader in modules and calls[id(modules[reader])] == 1
            after[name].append(reader if once and _is_norm(modules[str(reader)]) else None)
    found = {name: norms for name, norms in after.items() if None not in norms}
    return {
        other: tuple(str(norm) for norm in norms)
        for name, norms in found.items()
        for other in own
        if names[id(own[other])] == names[id(own[name])]
    }


def _called(graph: fx.Graph) -> dict[fx.Node, str]:
    """The nodes that are calls of a module, each with its name.

    Where a graph shows the operations of modules, those are that are a call's only one.
    """
    calls: dict[object, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        around = list(node.meta.get("nn_module_stack", ()))
        if node.op == "call_module":
            calls[node].append(node)
        elif node.op == "call_function" and around:
            calls[around[-1]].append(node)
    alone = (nodes[0] for nodes in calls.values() if len(nodes) == 1)
    return {node: name for node in alone if (name := home(node)) is not None}


def _graph(model: nn.Module, example: Any) -> fx.Graph:
    try:
        if example is None:
            return trace_without_example(model)
        try:
            return trace_symbolically(model, Example.of(example)).graph
        except Exception:  # tracing runs the caller's code, which may raise anything
            return trace_by_export(model, Example.of(example)).graph
    except Exception as error:
        hint = "pass example=, or make" if example is None else "make"
        raise SelectionError(
            f"{type(model).__name__} cannot be traced to find its layers' BatchNorms; "
            f"{hint} the selection with after='layer'"
        ) from error


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, BATCH_NORM) and type(module).__module__.startswith("torch.nn.")
