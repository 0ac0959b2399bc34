"""Questions about nodes, of the torch graph and of the file."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten

from upscale.model.layers import equal
from upscale.onnx_files.importing import Source
from upscale.rewrite.building import unclashing


def leaves(node: fx.Node) -> list[Any]:
    """Everything that a node is given, one after the other."""
    return tree_flatten((node.args, dict(node.kwargs)))[0]


def first_names(made: Mapping[str, str]) -> dict[str, str]:
    """The first name that the file has for what each node makes."""
    found: dict[str, str] = {}
    for name, node in made.items():
        found.setdefault(node, name)
    return found


def shapes_of(module: fx.GraphModule, source: Source) -> dict[str, tuple[int, ...]]:
    """The shape of what each node makes, for one size of the inputs."""
    shapes: dict[str, tuple[int, ...]] = {}

    class Sizing(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            made = super().run_node(n)
            if isinstance(made, Tensor):
                shapes[n.name] = tuple(made.shape)
            return made

    numberless = copy.deepcopy(module).to("meta")
    inputs = [torch.empty(shape, dtype=dtype, device="meta") for _, shape, dtype in source.example]
    with torch.no_grad():
        Sizing(numberless).run(*inputs)
    return shapes


def attribute_of(module: nn.Module, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    found: Tensor = getattr(module.get_submodule(owner), name)
    return found


def groups_of(node: fx.Node) -> Any:
    return node.args[6] if len(node.args) > 6 else node.kwargs.get("groups")


def takes_groups(node: fx.Node, value: Any) -> bool:
    return "conv" in str(node.target) and groups_of(node) == value


def set_whole(node: Any, name: str, value: int) -> None:
    """Set a whole number among the attributes of a node."""
    for own in node.attribute:
        if own.name == name:
            own.i = value
            return
    made = node.attribute.add()
    made.name, made.type, made.i = name, made.INT, value


def all_there(imported: nn.Module, pruned: nn.Module) -> bool:
    """Whether an export has every parameter as it was."""
    now = dict(pruned.state_dict())
    return all(
        unclashing(name) in now and equal(now[unclashing(name)], own)
        for name, own in imported.state_dict().items()
    )
