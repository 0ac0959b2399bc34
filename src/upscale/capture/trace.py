"""Tracing: a model and an example become a graph whose every operation was observed.

The graph is traced symbolically, so batch and image size stay free. It is then run once, node
by node, on shapes alone (the meta device). Later stages read only the record of that run.
"""

from __future__ import annotations

import copy
import inspect
import re
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from upscale.capture.observe import Observer
from upscale.capture.record import Captured, Example
from upscale.errors import CaptureError, ExampleError
from upscale.layers import computes_weight, layers, parameter_names, weight_of


def capture(model: nn.Module, example: Example) -> Captured:
    """Trace a model and observe one run of it; the model itself is not touched."""
    _check_devices(model, example)
    graph = _trace(model, example)
    observer = _observe(graph, model, example)
    return Captured(
        name=type(model).__name__,
        graph=graph,
        computed={
            name: tuple(weight_of(layer).shape)
            for name, layer in layers(model).items()
            if computes_weight(layer)
        },
        leaves=frozenset(
            name
            for name, module in model.named_modules(remove_duplicate=False)
            if next(module.children(), None) is None
        ),
        observed=observer.observed,
        values=observer.values,
        sources={node.name: _source_line(node) for node in graph.nodes},
        training=model.training,
    )


def size_arguments(node: fx.Node) -> int | None:
    """Where the sizes of a reshaping node begin among its arguments, if they stand there."""
    methods = ("view", "reshape", "expand")
    functions = (torch.reshape, torch.ops.aten.view.default, torch.ops.aten.reshape.default)
    named = node.op == "call_method" and node.target in methods
    called = node.op == "call_function" and node.target in functions
    return 1 if (named or called) and len(node.args) > 1 else None


def _check_devices(model: nn.Module, example: Example) -> None:
    owned = {str(p.device) for p in model.parameters()}
    given = {str(x.device) for x in example.tensors}
    if not example.tensors:
        raise ExampleError(
            "the example holds no tensor; pass what the model's forward takes: "
            "a tensor, a tuple of them or a dict of keyword inputs"
        )
    if owned and given and owned != given:
        raise ExampleError(
            f"the model is on {', '.join(sorted(owned))} and the example on "
            f"{', '.join(sorted(given))}; move both to one device"
        )


def _trace(model: nn.Module, example: Example) -> fx.Graph:
    bound = _bind_arguments(model, example)
    fixed = {
        name: value
        for name, value in bound.arguments.items()
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))
        and bound.signature.parameters[name].kind
        not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }
    tracer = _Tracer()
    tracer.record_stack_traces = True
    try:
        graph = tracer.trace(model, concrete_args=fixed or None)
    except Exception as error:  # tracing runs the caller's code, which may raise anything
        raise CaptureError(
            f"{type(model).__name__} cannot be traced: {error}. Python control flow on tensor "
            "values is the usual cause; trace the part that has none, or wrap the function "
            "that has it with torch.fx.wrap"
        ) from error
    _drop_fixed_inputs(graph, set(bound.arguments) - set(fixed))
    return graph


class _Tracer(fx.Tracer):
    """Looks into layers whose weight is computed by a parametrisation."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if parametrize.is_parametrized(m):
            return False
        return bool(super().is_leaf_module(m, module_qualified_name))


def _drop_fixed_inputs(graph: fx.Graph, free: set[str]) -> None:
    """Inputs the example leaves at a default are part of the model, not of its signature."""
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.target not in free:
            doomed = [node]
            for user in doomed:
                doomed.extend(user.users)
            if any(user.op == "output" for user in doomed):
                continue
            for user in reversed(list(dict.fromkeys(doomed))):
                graph.erase_node(user)


def _observe(graph: fx.Graph, model: nn.Module, example: Example) -> Observer:
    names = parameter_names(model)
    twins: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        shape = torch.empty_like(tensor, device="meta")
        twins[id(tensor)] = (
            nn.Parameter(shape, requires_grad=tensor.requires_grad)
            if isinstance(tensor, nn.Parameter)
            else shape
        )
    owned = {id(shape): f"@{names[key]}" for key, shape in twins.items()}
    twin = copy.deepcopy(model, dict(twins))
    shapes = example.map(lambda x: x.to("meta") if isinstance(x, Tensor) else x)
    observer = Observer(twin, graph, owned)
    try:
        with torch.inference_mode(), torch.device("meta"):
            observer.run(*_inputs(model, graph, shapes))
    except CaptureError:
        raise
    except Exception as meta_error:
        return _observe_for_real(graph, model, example, meta_error)
    return observer


def _observe_for_real(
    graph: fx.Graph, model: nn.Module, example: Example, meta_error: Exception
) -> Observer:
    """Some code needs numbers, not shapes: run a copy on the example itself."""
    memo: dict[int, Any] = {}
    real = copy.deepcopy(model, memo)
    owned = {
        id(memo[key]): f"@{name}" for key, name in parameter_names(model).items() if key in memo
    }
    observer = Observer(real, graph, owned)
    try:
        with torch.inference_mode():
            observer.run(*_inputs(model, graph, example))
    except CaptureError:
        raise
    except Exception as error:
        shapes = ", ".join(str(tuple(x.shape)) for x in example.tensors)
        raise ExampleError(
            f"the model fails on an example of shape {shapes} at {observer.at}: "
            f"{str(error).splitlines()[0] if str(error) else repr(error)}"
        ) from meta_error
    return observer


def _inputs(model: nn.Module, graph: fx.Graph, example: Example) -> list[Any]:
    """The example's inputs in the order of the graph's placeholders."""
    given = _bind_arguments(model, example).arguments
    return [given[str(node.target).lstrip("*")] for node in graph.nodes if node.op == "placeholder"]


def _bind_arguments(model: nn.Module, example: Example) -> inspect.BoundArguments:
    try:
        bound = inspect.signature(model.forward).bind(*example.args, **example.kwargs)
    except TypeError as error:
        raise ExampleError(
            f"{type(model).__name__}.forward does not take the example: {error}"
        ) from error
    bound.apply_defaults()
    return bound


def _source_line(node: fx.Node) -> str:
    """`file.py:12` of the model code behind a node, or nothing."""
    found = re.findall(r'File "([^"]+)", line (\d+)', node.stack_trace or "")
    frames = [(PurePath(path), line) for path, line in found if "torch" not in PurePath(path).parts]
    return f"{frames[-1][0].name}:{frames[-1][1]}" if frames else ""
