"""Norms: the BatchNorm that belongs to a layer, if one alone reads what the layer makes."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from torch import fx, nn

from upscale.capture.record import Example
from upscale.capture.tracing import trace_symbolically, trace_without_example
from upscale.errors import SelectionError
from upscale.layers import layers


def find_norms(model: nn.Module, example: Any = None) -> dict[str, tuple[str, ...]]:
    """For each layer with normalisation of its own, the names of its BatchNorms.

    A BatchNorm belongs to a layer if it reads nothing else, and if nothing else reads what the
    layer makes. A layer called several times has one after each call, or none counts.
    """
    graph = _graph(model, example)
    modules = dict(model.named_modules(remove_duplicate=False))
    names = {id(module): name for name, module in reversed(modules.items())}
    calls = Counter(id(modules[n.target]) for n in graph.nodes if n.op == "call_module")
    after: dict[str, list[str | None]] = defaultdict(list)
    own = layers(model)
    for node in graph.nodes:
        if node.op == "call_module" and node.target in own:
            reader = next(iter(node.users)) if len(node.users) == 1 else None
            after[node.target].append(_norm(reader, modules, calls))
    found = {name: norms for name, norms in after.items() if None not in norms}
    return {
        other: tuple(str(norm) for norm in norms)
        for name, norms in found.items()
        for other in own
        if names[id(own[other])] == names[id(own[name])]
    }


def _graph(model: nn.Module, example: Any) -> fx.Graph:
    try:
        if example is not None:
            return trace_symbolically(model, Example.of(example)).graph
        return trace_without_example(model)
    except Exception as error:  # tracing runs the caller's code, which may raise anything
        raise SelectionError(
            f"{type(model).__name__} cannot be traced to find its layers' BatchNorms; "
            "pass example=, or make the selection with after='layer'"
        ) from error


def _norm(reader: fx.Node | None, modules: dict[str, nn.Module], calls: Counter[int]) -> str | None:
    """The name of a reader that is a BatchNorm called once."""
    if reader is None or reader.op != "call_module":
        return None
    module = modules[str(reader.target)]
    once = calls[id(module)] == 1
    is_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    return str(reader.target) if is_norm and once else None
