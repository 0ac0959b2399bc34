"""Loading: a pruned model from its file, with or without the class it was pruned from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from upscale.api import apply
from upscale.errors import PlanError, StoreError, UpscaleError
from upscale.layers import tensors
from upscale.ordinary import ordinary_tensors
from upscale.planning import Plan
from upscale.reference import hold_output
from upscale.settling import duplicate
from upscale.store import container
from upscale.store.checks import (
    Json,
    as_bool,
    as_entry,
    as_identifier,
    as_integer,
    as_list,
    as_object,
    as_table,
)
from upscale.store.examples import json_to_example
from upscale.store.graphs import json_to_graph
from upscale.store.modules import json_to_module
from upscale.store.saving import VERSION
from upscale.store.tensors import install, json_to_tensors


@ordinary_tensors()
def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> fx.GraphModule:
    """The exported model that `save` wrote, made anew without the class it was pruned from.

    Given a model of that class, its own code is traced and the file's plan applied to it; the
    weights are the file's all the same. Raises `StoreError` on any file that is not whole.
    """
    document, stored = container.read(Path(path))
    try:
        return _load(document, stored, model)
    except RecursionError as error:
        raise StoreError(f"{path} is nested too deeply") from error


def _load(document: Json, stored: dict[str, Tensor], model: nn.Module | None) -> fx.GraphModule:
    version = document.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        raise StoreError(
            f"the file has version {str(version)[:20]} of the format, and this is a reader of "
            f"version {VERSION}" + ("; a newer upscale reads it" if newer else "")
        )
    entries = as_object(
        document,
        *("version", "torch", "name", "graph", "modules", "training", "held", "tensors"),
        *("plan", "example"),
    )
    plan = None if entries["plan"] is None else _plan(entries["plan"])
    pruned = _made(entries) if model is None else _applied(entries, plan, model)
    held = json_to_tensors(entries["tensors"])
    if model is not None:
        _check_shapes(pruned, {path: stored.get(own.stored) for path, own in held.items()})
    install(pruned, held, stored)
    _check_targets(pruned)
    _set_modes(pruned, entries["training"])
    if model is None:
        for path, channels in as_table(entries["held"]).items():
            _hold(_submodule(pruned, path), tuple(map(as_integer, as_list(channels))))
    if plan is not None:
        pruned.meta |= {"plan": plan, "example": json_to_example(entries["example"])}
    return pruned


def _made(entries: dict[str, Json]) -> fx.GraphModule:
    """The model of the file's own graph and modules."""
    graph = json_to_graph(entries["graph"])
    modules: dict[str, nn.Module] = {}
    for path, spec in as_table(entries["modules"]).items():
        same = isinstance(spec, dict) and "same" in spec
        modules[path] = as_entry(modules, spec["same"], "module") if same else json_to_module(spec)
    parts: dict[str, Any] = dict(modules)
    for node in graph.nodes:
        if node.op == "call_module":
            as_entry(modules, node.target, "module")
        elif node.op == "get_attr":
            parts[str(node.target)] = nn.Parameter(Tensor(), requires_grad=False)
    name = as_identifier(entries["name"], "a model")
    try:
        return fx.GraphModule(parts, graph, name)
    except Exception as error:  # torch's own code puts the parts together, and checks as it pleases
        raise StoreError(f"the file's parts do not fit together: {error}") from error


def _applied(entries: dict[str, Json], plan: Plan | None, model: nn.Module) -> fx.GraphModule:
    """The model given, pruned as the file's plan says."""
    if plan is None:
        raise StoreError("the file holds no plan to apply; load it without a model")
    modes = entries["training"]
    if not isinstance(modes, dict):
        raise StoreError("the file does not say which modules train")
    twin = duplicate(model).train(as_bool(modes.get("")))
    device = next((tensor.device for tensor in twin.parameters()), torch.device("cpu"))
    example = json_to_example(entries["example"]).map(
        lambda x: torch.zeros_like(x, device=device) if isinstance(x, Tensor) else x
    )
    try:
        return apply(twin, plan, example)
    except UpscaleError as error:
        raise StoreError(f"the file was saved from another model: {error}") from error
    except Exception as error:  # a plan that was tampered with may fail anywhere
        raise StoreError(f"the file's plan does not fit the model: {error!r}") from error


def _check_shapes(pruned: nn.Module, given: dict[str, Tensor | None]) -> None:
    """Raise unless the tensors of a file are those that the model given has."""
    own = tensors(pruned)
    for path in own.keys() | given.keys():
        one, other = own.get(path), given.get(path)
        if one is None or other is None or one.shape != other.shape:
            raise StoreError(f"the file was saved from another model: {path} differs")


def _plan(text: Json) -> Plan:
    try:
        return Plan.from_json(text)
    except PlanError as error:
        raise StoreError(f"the file's plan cannot be read: {error}") from error


def _check_targets(pruned: fx.GraphModule) -> None:
    """Raise unless every part that the graph names is of the kind that it is used as."""
    for node in pruned.graph.nodes:
        if node.op not in ("call_module", "get_attr"):
            continue
        found: Any = pruned
        for part in str(node.target).split("."):
            found = getattr(found, part, None)
        if not isinstance(found, nn.Module if node.op == "call_module" else Tensor):
            raise StoreError(f"the file's node {node.name} uses {node.target}, which is not there")


def _set_modes(pruned: nn.Module, training: Json) -> None:
    modes = training if isinstance(training, dict) else {}
    for path, module in pruned.named_modules():
        module.training = as_bool(modes.get(path))


def _submodule(pruned: nn.Module, path: str) -> nn.Module:
    try:
        return pruned.get_submodule(path)
    except AttributeError as error:
        raise StoreError(f"the file masks {path}, which is not there") from error


def _hold(module: nn.Module, channels: tuple[int, ...]) -> None:
    try:
        hold_output(module, channels)
    except (IndexError, RuntimeError, AssertionError) as error:
        raise StoreError(f"the file masks channels that are not there: {error}") from error
