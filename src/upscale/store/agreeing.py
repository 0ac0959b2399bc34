"""Agreement: what a file holds, against what its plan makes of a model of the class it is from.

Both ways of loading must come to the same model. Numbers play no part: a plan decides which
channels stay and how they are read, and the weights are the file's either way.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import fx, nn

from upscale.api import apply
from upscale.errors import StoreError, UpscaleError
from upscale.model.accepting import duplicate, settled
from upscale.model.layers import copied, tensors
from upscale.store.bounds import most_made_bytes
from upscale.store.checks import Json
from upscale.store.examples import example_bytes
from upscale.store.graphs import graph_to_json
from upscale.store.saving import masks_to_json, modules_to_json


def check_made_of(model: nn.Module, pruned: fx.GraphModule, size: int) -> None:
    """Raise unless a model, pruned as a file of so many bytes says, is the one the file holds."""
    applied = _applied(model, pruned, size)
    ours, theirs = tensors(pruned), tensors(applied)
    for path in sorted(ours.keys() | theirs.keys()):
        one, other = ours.get(path), theirs.get(path)
        if one is None or other is None or one.shape != other.shape:
            raise StoreError(f"the file was saved from another model: {path} differs")
    for here, there in zip(_described(pruned), _described(applied), strict=True):
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                raise StoreError(
                    f"the file was saved from another model, or its plan was changed since: with "
                    f"the model given {name[:80]} is {there.get(name)!s:.200}, in the file "
                    f"{here.get(name)!s:.200}"
                )


def _described(pruned: fx.GraphModule) -> tuple[dict[str, Json], ...]:
    """All that a module does, by the names of what does it; its order and signature too."""
    graph = graph_to_json(pruned.graph)
    nodes = {node["name"]: node for node in graph["nodes"]}
    whole = {"order of nodes": list(nodes), "signature": graph["signature"]}
    return nodes, whole, modules_to_json(pruned), dict(masks_to_json(pruned))


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
    except Exception as error:  # a plan that was tampered with may fail anywhere
        raise StoreError(f"the file's plan does not fit the model: {error!r:.200}") from error


def _without_numbers(model: nn.Module) -> nn.Module:
    """A copy of a model on the meta device; what was shared stays shared."""
    twins: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        empty = torch.empty_like(tensor, device="meta", requires_grad=False)
        twins[id(tensor)] = (
            nn.Parameter(empty, requires_grad=tensor.requires_grad)
            if isinstance(tensor, nn.Parameter)
            else empty
        )
    return copied(model, twins)
