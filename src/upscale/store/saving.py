"""Saving: a pruned model as one file."""

from __future__ import annotations

import os
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from upscale.errors import StoreError
from upscale.masking import held_channels
from upscale.planning import Plan
from upscale.store import container
from upscale.store.checks import Json, as_identifier, as_path, check_values
from upscale.store.examples import check_example, example_to_json
from upscale.store.graphs import graph_to_json
from upscale.store.modules import check_hooks, module_to_json
from upscale.store.tensors import tensors_to_json

VERSION = 1


def save(pruned: fx.GraphModule, path: str | os.PathLike[str]) -> None:
    """Write an exported model to one safetensors file, with all that `load` needs to make it anew.

    The file holds no code. It is replaced at once: a save that is interrupted leaves the old one.
    """
    if not isinstance(pruned, fx.GraphModule):
        raise StoreError(
            f"save takes what upscale.export or upscale.prune returns, not {type(pruned).__name__}"
        )
    for name, module in pruned.named_modules():
        where = f"module {name}" if name else "the export itself"
        check_hooks(module, f"{where} cannot be saved: ")
    held, tensors = tensors_to_json(pruned)
    for name in held:
        as_path(name)
    size = sum(tensor.nbytes for tensor in tensors.values())  # of the file: it has more
    document = {
        "version": VERSION,
        "torch": torch.__version__,
        "name": as_identifier(type(pruned).__name__, "a model"),
        "graph": graph_to_json(pruned.graph),
        "modules": modules_to_json(pruned),
        "training": {name: own.training for name, own in pruned.named_modules()},
        "held": masks_to_json(pruned),
        "tensors": held,
        **_origin_to_json(pruned, size),
    }
    check_values([document["graph"], document["example"]], size)
    for node in pruned.graph.nodes:
        if node.op == "get_attr" and node.target not in held:
            raise StoreError(
                f"node {node.name} reads {node.target}, which is no parameter or buffer; "
                "register it as one before exporting"
            )
    container.write(Path(path), document, tensors)


def modules_to_json(pruned: fx.GraphModule) -> dict[str, Json]:
    """The layers that the graph calls, by path; one that is called by two is told once."""
    specs: dict[str, Json] = {}
    first: dict[int, str] = {}
    for path in sorted({str(n.target) for n in pruned.graph.nodes if n.op == "call_module"}):
        module = pruned.get_submodule(path)
        try:
            known = first.setdefault(id(module), path)
            specs[path] = module_to_json(module) if known == path else {"same": known}
        except StoreError as error:
            raise StoreError(
                f"module {path} ({type(module).__name__}) cannot be saved: {error}"
            ) from error
    _check_rest(pruned, specs)
    return specs


def _check_rest(pruned: fx.GraphModule, specs: dict[str, Json]) -> None:
    """Raise if there is a module that the graph does not call and that is more than a holder."""
    for path, module in pruned.named_modules(remove_duplicate=False):
        above = accumulate(path.split("."), "{}.{}".format)
        if path and specs.keys().isdisjoint(above) and type(module) is not nn.Module:
            raise StoreError(
                f"module {path} ({type(module).__name__}) is not called by the model's graph, and "
                "would be lost; delete it before saving"
            )


def masks_to_json(pruned: nn.Module) -> dict[str, list[int]]:
    """The output channels that are made zero at run time, by the module after which they are."""
    masks = {name: held_channels(module) for name, module in pruned.named_modules()}
    return {name: list(channels) for name, channels in masks.items() if channels}


def _origin_to_json(pruned: fx.GraphModule, size: int) -> dict[str, Json]:
    """The plan that the model was exported with, and the inputs it was captured with."""
    plan: Any = pruned.meta.get("plan")
    if not isinstance(plan, Plan):
        return {"plan": None, "example": None}
    example = pruned.meta["example"]
    check_example(example, size)
    return {"plan": plan.to_json(), "example": example_to_json(example)}
