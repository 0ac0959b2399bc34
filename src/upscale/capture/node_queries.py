"""Questions about a graph's node as it is written: does it ask for sizes, does it reshape."""

from __future__ import annotations

import torch
from torch import fx

aten = torch.ops.aten
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default, torch.reshape)
SIZES = ("size", "shape")
RANKS = ("dim", "ndimension", "ndim")
PROPERTIES = ("dtype", "device", "is_cuda", "is_floating_point")


def size_arguments(node: fx.Node) -> int | None:
    """Where the sizes of a reshaping node begin among its arguments, if they stand there."""
    named = node.op == "call_method" and node.target in ("view", "reshape", "expand")
    called = node.target in RESHAPES or node.target is aten.expand.default
    if not (named or called) or len(node.args) < 2:
        return None
    first = node.args[1]
    # One node may stand for a whole shape, which cannot be told from a single size here.
    if isinstance(first, fx.Node) and len(node.args) == 2 and not asks_sizes(first):
        return None
    return 1


def asks_sizes(node: fx.Node) -> bool:
    """Whether a node asks for a tensor's shape, or one size of it."""
    return _asked(node) in SIZES or node.target is aten.sym_size.int


def asks_property(node: fx.Node) -> bool:
    """Whether a node asks a tensor for something that pruning does not change."""
    return _asked(node) in PROPERTIES or asks_rank(node)


def asks_rank(node: fx.Node) -> bool:
    """Whether a node asks how many axes a tensor has."""
    return _asked(node) in RANKS


def axis_asked(node: fx.Node) -> int | None:
    """The axis whose size a node asks for; `None` if it asks for all."""
    if node.target is getattr or len(node.args) + len(node.kwargs) < 2:
        return None
    axis = node.args[1] if len(node.args) > 1 else node.kwargs["dim"]
    return axis if isinstance(axis, int) else None


def _asked(node: fx.Node) -> object:
    if node.target is getattr:
        return node.args[1]
    return node.target if node.op == "call_method" else None
