"""Arguments of nodes as JSON and back: numbers, texts, containers, and a few of torch's values.

What is not plain in JSON is an object with one key that says what it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from upscale.errors import StoreError
from upscale.store.checks import Json, as_entry, as_integer, as_list, as_pairs
from upscale.store.registry import CONSTANTS, function_named, name_of

DEVICE = re.compile(r"(cpu|meta|cuda|mps|xpu)(:\d{1,3})?")


def literal_to_json(value: Any) -> Json:
    """A node's argument as JSON; raises on what a file cannot hold."""
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if type(value) is float and math.isfinite(value):
        return value
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
        pairs = as_pairs(inner)
        if all(type(key) in (str, int) for key, _ in pairs):
            return {key: json_to_literal(item, nodes) for key, item in pairs}
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
