"""Arguments of nodes as JSON and back, and how inputs and outputs are packed.

What is not plain in JSON is an object with one key that says what it is.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten

from upscale.errors import StoreError
from upscale.store.checks import Json, as_entry, as_identifier, as_integer, as_list, as_pairs
from upscale.store.registry import CONSTANTS, function_named, name_of
from upscale.tools.versions import tree_children

DEVICE = re.compile(r"(cpu|meta|cuda|mps|xpu)(:\d{1,3})?")


def literal_to_json(value: Any) -> Json:
    """A node's argument as JSON; raises on what a file cannot hold."""
    finite = type(value) is not float or math.isfinite(value)
    if value is None or (type(value) in (bool, int, str, float) and finite):
        return value
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, list):
        return [literal_to_json(item) for item in value]
    return _composed_to_json(value)


def _composed_to_json(value: Any) -> Json:
    if isinstance(value, tuple) and hasattr(value, "_fields") and name_of(type(value)):
        return {"named": [name_of(type(value)), *map(literal_to_json, value)]}
    if isinstance(value, tuple) and (type(value) in (tuple, torch.Size)):
        return {"tuple": [literal_to_json(item) for item in value]}
    if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, literal_to_json(item)] for key, item in value.items()]}
    if isinstance(value, slice):
        return {"slice": [literal_to_json(b) for b in (value.start, value.stop, value.step)]}
    if isinstance(value, complex):
        return {"complex": [literal_to_json(value.real), literal_to_json(value.imag)]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for name, constant in CONSTANTS.items():
        if type(value) is type(constant) and repr(value) == repr(constant):
            return {"constant": name}
    raise StoreError(f"its argument {value!r:.80} is a {type(value).__name__}")


def json_to_literal(value: Json, nodes: Mapping[str, fx.Node]) -> Any:
    """What JSON in a file stands for; `nodes` are those it may name."""
    if value is None or isinstance(value, (bool, str, float)):
        return value
    if isinstance(value, int):
        return as_integer(value)
    if isinstance(value, list):
        return [json_to_literal(item, nodes) for item in value]
    if not isinstance(value, dict) or len(value) != 1:
        raise StoreError("the file has an argument that is no object with one key")
    return _json_to_composed(*next(iter(value.items())), nodes)


def _json_to_composed(kind: str, inner: Json, nodes: Mapping[str, fx.Node]) -> Any:
    if kind == "node":
        return as_entry(nodes, inner, "node")
    if kind == "constant":
        return as_entry(CONSTANTS, inner, "constant")
    if kind == "device" and isinstance(inner, str) and DEVICE.fullmatch(inner):
        return torch.device(inner)
    if kind == "dict":
        return {key: json_to_literal(item, nodes) for key, item in as_pairs(inner)}
    if kind in ("tuple", "slice", "complex"):
        parts = [json_to_literal(item, nodes) for item in as_list(inner)]
        if kind == "tuple":
            return tuple(parts)
        if kind == "slice" and len(parts) == 3:
            return slice(*parts)
        if kind == "complex" and [type(part) for part in parts] == [float, float]:
            return complex(*parts)
    if kind == "named":
        name, *items = as_list(inner) or [None]
        cls = function_named(name)
        if len(getattr(cls, "_fields", ())) == len(items) > 0:
            return cls(*(json_to_literal(item, nodes) for item in items))
    raise StoreError(f"the file has an argument {kind[:40]!r} that cannot be read")


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
        return MAPPINGS[kind]((key, _example(item)) for key, item in as_pairs(inner))
    raise StoreError(f"the file packs inputs or outputs in a {str(kind)[:40]!r}")


def check_names(spec: TreeSpec) -> TreeSpec:
    """The shape of inputs, if every key in it can be the name of one: keys stand in the code."""
    for key in spec.context if spec.type in MAPPINGS.values() else ():
        as_identifier(key, "an input")
    for child in tree_children(spec):
        check_names(child)
    return spec
