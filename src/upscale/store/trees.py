"""How a graph's inputs and outputs are packed, as JSON and back: tuples, lists and dicts."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten

from upscale.errors import StoreError
from upscale.store.checks import Json, as_identifier, as_list, as_pairs
from upscale.tools.versions import tree_children

LEAF = "*"
MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "OrderedDict": OrderedDict}


def tree_to_json(spec: TreeSpec) -> Json:
    """The shape of a packed value."""
    if spec.is_leaf():
        return LEAF
    inner = [tree_to_json(child) for child in tree_children(spec)]
    if spec.type in (tuple, list):
        return {spec.type.__name__: inner}
    if spec.type in MAPPINGS.values():
        return {spec.type.__name__: [list(pair) for pair in zip(spec.context, inner, strict=True)]}
    raise StoreError(f"the model takes or gives a {spec.type.__name__}, which a file cannot hold")


def json_to_tree(value: Json) -> TreeSpec:
    """The shape a file describes."""
    return tree_flatten(_example(value))[1]


def _example(value: Json) -> object:
    """Something packed so."""
    if value == LEAF:
        return 0
    if not isinstance(value, dict) or len(value) != 1:
        raise StoreError("the file does not say how inputs and outputs are packed")
    ((kind, inner),) = value.items()
    if kind == "tuple":
        return tuple(map(_example, as_list(inner)))
    if kind == "list":
        return [_example(item) for item in as_list(inner)]
    if kind in MAPPINGS:
        pairs = as_pairs(inner)
        if all(type(key) in (str, int) for key, _ in pairs):
            return MAPPINGS[kind]((key, _example(item)) for key, item in pairs)
    raise StoreError(f"the file packs inputs or outputs in a {str(kind)[:40]!r}")


def check_names(spec: TreeSpec) -> TreeSpec:
    """The shape of inputs, if every key in it can be the name of one: keys stand in the code."""
    for key in spec.context if spec.type in MAPPINGS.values() else ():
        as_identifier(key, "an input")
    for child in tree_children(spec):
        check_names(child)
    return spec
