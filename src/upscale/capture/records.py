"""Records: dataclasses that a model returns are made again by the graph that was traced.

A graph has words for tuples, lists and dicts alone. `return Output(logits=y)` therefore becomes a
node of its own that calls the class:

    y = conv(x)
    output = Output(logits=y)      # marked by PACKS in its meta
    return output

Dicts of a class of their own are made again likewise, and named tuples where torch needs it.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.fx.graph import _PyTreeCodeGen
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from upscale.capture.captured import is_own_dict, is_record, leaves_of, mapped
from upscale.errors import CaptureError

PACKS = "packs"


@dataclass(frozen=True, slots=True)
class Packed:
    """A record as one thing: what is in it was read by the node that made it."""

    value: Any


def maker_of(value: Any) -> functools.partial[Any] | None:
    """The call that makes a record anew; `None` if nothing in it is traced."""
    if not any(isinstance(leaf, fx.Proxy | fx.Node) for leaf in leaves_of(value)):
        return None
    kind: Any = type(value)
    if isinstance(value, tuple):
        maker = functools.partial(kind, *value)
    elif not is_record(value):
        maker = functools.partial(kind, list(value.items()))
    else:
        # A field that is `None` is said only where it is not `None` by default.
        held = [(f, getattr(value, f.name, None)) for f in dataclasses.fields(value) if f.init]
        said = {f.name: v for f, v in held if v is not None or f.default is not None}
        maker = functools.partial(kind, **said)
    if not _makes(maker, value):
        raise CaptureError(
            f"forward makes a {kind.__name__}, and calling that class with what is in it "
            "does not make the same again; give a dict, a tuple or a plain dataclass"
        )
    return maker


def _makes(maker: functools.partial[Any], value: Any) -> bool:
    """Whether a call makes a record that holds the very things that another does."""
    try:
        made = maker()
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
    """A value with its records as nodes that make them."""

    def packed(leaf: Any) -> Any:
        maker = maker_of(leaf) if is_own_dict(leaf) or is_record(leaf) else None
        if maker is None:
            return leaf
        args, kwargs = _pack(graph, (maker.args, maker.keywords))
        node = graph.call_function(maker.func, args, kwargs)
        node.meta[PACKS] = True
        return node

    # Dicts of a class of their own are records too, although pytrees may know them.
    return tree_map(packed, value, is_leaf=is_own_dict)
