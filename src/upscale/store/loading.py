"""Loading: a pruned model from its file, with or without the class it was pruned from.

Both ways must come to the same model: what the file holds is held against what its plan makes of a
model of that class. Numbers play no part there: a plan decides which channels stay and how they
are read, and the weights are the file's either way.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from upscale.api import apply
from upscale.errors import StoreError, UpscaleError
from upscale.masking import hold_output
from upscale.model.accepting import duplicate, ordinary_tensors, settled
from upscale.model.layers import copied, tensors
from upscale.planning import Plan
from upscale.store import checks, container
from upscale.store.checks import Json, as_table, check_values, most_made_bytes
from upscale.store.examples import example_bytes, json_to_example
from upscale.store.graphs import graph_to_json, json_to_graph
from upscale.store.modules import json_to_module
from upscale.store.saving import VERSION, masks_to_json, modules_to_json
from upscale.store.tensors import Held, install, json_to_tensors, submodule

ENTRIES = "version torch name graph modules training held tensors plan example".split()
LEAST_NAMES = 1000


@ordinary_tensors()
def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> fx.GraphModule:
    """The exported model that `save` wrote, made anew without the class it was pruned from.

    Given a model of that class, its own code is traced, and what the file's plan makes of it must
    be what the file holds. Raises `StoreError` on any file that is not whole.
    """
    try:
        return _load(container.read(Path(path)), model)
    except StoreError:
        raise
    except Exception as error:  # whatever a file brings about, memory and depth included: its plan
        # may be none, its parts may not fit together, its masks may lie beyond the last channel.
        raise StoreError(f"{path!s:.200} cannot be loaded: {error!r:.200}") from error


def _load(content: container.Content, model: nn.Module | None) -> fx.GraphModule:
    entries = _entries(content.document)
    check_values([entries["graph"], entries["example"]], content.size)
    plan = None if entries["plan"] is None else Plan.from_json(entries["plan"])
    held = json_to_tensors(entries["tensors"])
    pruned = _made(entries, held)
    install(pruned, held, content.tensors)
    _check_targets(pruned)
    modes = entries["training"] if isinstance(entries["training"], dict) else {}
    for path, module in pruned.named_modules():
        module.training = checks.as_bool(modes.get(path))
    for path, channels in as_table(entries["held"]).items():
        masked = submodule(pruned, path, f"masks {path}, which is not there")
        hold_output(masked, tuple(checks.as_integers(channels)))
    if plan is None and model is not None:
        raise StoreError("the file holds no plan to apply; load it without a model")
    if plan is not None:
        example = json_to_example(entries["example"], content.size)
        pruned.meta |= {"plan": plan, "example": example}
        if model is not None:
            check_made_of(model, pruned, content.size)
    return pruned


def _entries(document: Json) -> dict[str, Json]:
    version = document.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        raise StoreError(
            f"the file has version {str(version)[:20]} of the format, and this is a reader of "
            f"version {VERSION}" + ("; a newer upscale reads it" if newer else "")
        )
    return checks.as_object(document, *ENTRIES)


def _made(entries: dict[str, Json], held: Mapping[str, Held]) -> fx.GraphModule:
    """The model of the file's own graph and modules, without numbers in its tensors."""
    graph = json_to_graph(entries["graph"])
    specs = as_table(entries["modules"])
    called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    if called != specs.keys():
        odd = min(called ^ specs.keys())
        raise StoreError(f"the file has {odd[:80]} among its layers or its nodes, and not in both")
    counted = Counter(path.rpartition(".")[0] for path in held)
    modules: dict[str, nn.Module] = {}
    for path, spec in specs.items():
        if isinstance(spec, dict) and "same" in spec:
            modules[path] = checks.as_entry(modules, spec["same"], "module")
        else:
            modules[path] = json_to_module(spec, counted[path])
    read = [str(node.target) for node in graph.nodes if node.op == "get_attr"]
    parts: dict[str, Any] = {**modules, **{path: _attribute(modules, path) for path in read}}
    name = checks.as_identifier(entries["name"], "a model")
    made = fx.GraphModule(parts, graph, name)
    _check_finite(made, sum(map(len, parts)))
    return made


def _attribute(modules: Mapping[str, nn.Module], path: str) -> Tensor:
    """What stands for a tensor that the graph reads by name: a layer's own, or any."""
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        layer = modules.get(".".join(parts[:end]))
        if layer is not None:
            found = _part(layer, parts[end:])
            if not isinstance(found, Tensor):
                raise StoreError(f"the file's graph reads {path}, which no such layer has")
            return found
    return nn.Parameter(Tensor(), requires_grad=False)


def _part(owner: Any, names: Sequence[str]) -> Any:
    """What lies at a path within a module, or nothing."""
    return reduce(lambda found, name: getattr(found, name, None), names, owner)


def _check_finite(made: nn.Module, most: int) -> None:
    """Raise if a module has more names within it than a file's paths have letters.

    One that holds another twice, which holds a third twice, has names without end.
    """
    names = made.named_modules(remove_duplicate=False)
    within = sum(1 for _ in zip(names, range(LEAST_NAMES + 10 * most + 1), strict=False))
    if within > LEAST_NAMES + 10 * most:
        raise StoreError("the file's modules hold each other over and over")


def _check_targets(pruned: fx.GraphModule) -> None:
    """Raise unless every part that the graph names is of the kind that it is used as."""
    for node in pruned.graph.nodes:
        kind = {"call_module": nn.Module, "get_attr": Tensor}.get(node.op)
        if kind and not isinstance(_part(pruned, str(node.target).split(".")), kind):
            raise StoreError(f"the file's node {node.name} uses {node.target}, which is not there")


def check_made_of(model: nn.Module, pruned: fx.GraphModule, size: int) -> None:
    """Raise unless a model, pruned as a file of so many bytes says, is the one the file holds."""
    applied = _applied(model, pruned, size)

    for here, there in zip(_described(pruned), _described(applied), strict=True):
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                raise StoreError(
                    f"the file was saved from another model, or its plan was changed since: with "
                    f"the model given {name[:80]} is {there.get(name)!s:.200}, in the file "
                    f"{here.get(name)!s:.200}"
                )


def _described(pruned: fx.GraphModule) -> tuple[dict[str, Json], ...]:
    """All that a module does, by the names of what does it; shapes, order and signature too."""
    shapes = {path: tuple(tensor.shape) for path, tensor in tensors(pruned).items()}
    graph = graph_to_json(pruned.graph)
    nodes = {node["name"]: node for node in graph["nodes"]}
    whole = {"order of nodes": list(nodes), "signature": graph["signature"]}
    return shapes, nodes, whole, modules_to_json(pruned), dict(masks_to_json(pruned))


def _applied(model: nn.Module, pruned: fx.GraphModule, size: int) -> fx.GraphModule:
    """The model given, pruned as the file's plan says; without numbers, where those cost much."""
    plan, example = pruned.meta["plan"], pruned.meta["example"]
    try:
        twin = settled(duplicate(model).train(pruned.training))
        if example_bytes(example) > most_made_bytes(size):
            return apply(_without_numbers(twin), plan, example)
        device = next((tensor.device for tensor in twin.parameters()), torch.device("cpu"))
        return apply(twin, plan, example.map(partial(torch.zeros_like, device=device)))
    except UpscaleError as error:
        raise StoreError(f"the file was saved from another model: {error}") from error


def _without_numbers(model: nn.Module) -> nn.Module:
    """A copy of a model on the meta device; what was shared stays shared."""
    twins: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        learnt = isinstance(tensor, nn.Parameter)
        twins[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if learnt else empty
    return copied(model, twins)
