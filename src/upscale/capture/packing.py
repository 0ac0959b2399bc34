"""Packing: tensors in containers that a graph has no words for, such as dataclasses.

A graph holds tuples, lists and dicts. What else a model takes or gives is made by a node that
calls its class, which is marked.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn
from torch.fx.graph import _PyTreeCodeGen
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from upscale.errors import CaptureError

PACKS = "packs"


@dataclass(frozen=True, slots=True)
class Packed:
    """A container as one thing: what is in it was read by the node that made it."""

    value: Any


@dataclass(frozen=True, slots=True)
class Parts:
    """A class, and what it is called with to make a container anew."""

    kind: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in what a model takes or gives, also in dataclasses and mappings.

    >>> import torch
    >>> len(tensors_in({"a": [torch.zeros(1)], "b": (torch.zeros(1), 3)}))
    2
    """
    return [leaf for leaf in leaves_of(value) if isinstance(leaf, Tensor)]


def leaves_of(value: Any) -> list[Any]:
    """Everything in a value that is no container."""
    found: list[Any] = []
    for leaf in tree_leaves(value):
        if is_record(leaf):
            for field in dataclasses.fields(leaf):
                found += leaves_of(getattr(leaf, field.name, None))
        elif isinstance(leaf, Mapping):
            found += leaves_of(list(leaf.values()))
        else:
            found.append(leaf)
    return found


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with everything in it that is no container changed, also in dataclasses."""

    def changed(leaf: Any) -> Any:
        if not is_record(leaf):
            return change(leaf)
        new = copy.copy(leaf)
        for field in dataclasses.fields(leaf):
            object.__setattr__(new, field.name, mapped(getattr(leaf, field.name), change))
        return new

    return tree_map(changed, value)


def parts_of(value: Any) -> Parts | None:
    """How a container that holds traced values is made; `None` if a graph has words for it."""
    packs = (isinstance(value, dict) and type(value) not in PLAIN) or is_record(value)
    if not packs or not any(isinstance(leaf, fx.Proxy | fx.Node) for leaf in leaves_of(value)):
        return None
    if not is_record(value):
        parts = Parts(type(value), (list(value.items()),))
    else:
        own = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value) if f.init}
        said = {k: v for k, v in own.items() if v is not None or _must_be_said(k, value)}
        parts = Parts(type(value), (), said)
    if not _makes(parts, value):
        raise CaptureError(
            f"forward makes a {type(value).__name__}, and calling that class with what is in it "
            "does not make the same again; give a dict, a tuple or a plain dataclass"
        )
    return parts


PLAIN = (dict, fx.immutable_collections.immutable_dict)


def _must_be_said(field: str, value: Any) -> bool:
    """Whether a field must be said although it is `None`."""
    (own,) = (f for f in dataclasses.fields(value) if f.name == field)
    return own.default is not None


def _makes(parts: Parts, value: Any) -> bool:
    """Whether a container made of parts holds the very things that another does."""
    try:
        made = parts.kind(*parts.args, **parts.kwargs)
    except Exception:  # a constructor of the caller's, which may raise anything
        return False
    ours, theirs = _held(made), _held(value)
    return ours.keys() == theirs.keys() and all(ours[key] is theirs[key] for key in ours)


def _held(value: Any) -> dict[Any, Any]:
    held: dict[Any, Any] = {}
    if isinstance(value, dict):
        held = {("item", key): inner for key, inner in value.items()}
    if is_record(value):
        held |= {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    return held | {("attribute", k): v for k, v in getattr(value, "__dict__", {}).items()}


def is_record(value: Any) -> bool:
    """Whether a value is a dataclass, and no class of one."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


class Unpacking:
    """Lets a model give dicts for dataclasses, which `torch.export` does not know.

    What it gave is remembered, and made again by the graph that was traced.
    """

    def __init__(self, model: nn.Module) -> None:
        forward = model.forward

        @functools.wraps(forward)
        def plain(*args: Any, **kwargs: Any) -> Any:
            self._given = forward(*args, **kwargs)
            return tree_map(_as_dict, self._given)

        model.forward = plain

    def pack(self, graph: fx.Graph) -> None:
        """Let a graph give what the model gave."""
        codegen = graph._codegen
        if not any(map(is_record, tree_leaves(self._given))):
            return
        assert isinstance(codegen, _PyTreeCodeGen)
        (last,) = graph.find_nodes(op="output")
        given = iter(last.args[0])
        with graph.inserting_before(last):
            packed = _pack(graph, mapped(self._given, lambda leaf: next(given)))
        flat, spec = tree_flatten(packed)
        last.args = (tuple(flat),)
        codegen.pytree_info = codegen.pytree_info._replace(out_spec=spec)


def _as_dict(leaf: Any) -> Any:
    if not is_record(leaf):
        return leaf
    return {f.name: tree_map(_as_dict, getattr(leaf, f.name)) for f in dataclasses.fields(leaf)}


def _pack(graph: fx.Graph, value: Any) -> Any:
    """A value as nodes, and containers of them that a graph has words for."""
    parts = parts_of(value)
    if parts is not None:
        args, kwargs = _pack(graph, parts.args), _pack(graph, dict(parts.kwargs))
        node = graph.call_function(parts.kind, args, kwargs)
        node.meta[PACKS] = True
        return node
    if isinstance(value, dict):
        return {key: _pack(graph, inner) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_pack(graph, inner) for inner in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_pack(graph, inner) for inner in value)
    return value
