"""Writes in place: apart from what is read later, and again where the model has them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Set
from typing import Any

import torch
from torch import fx

from upscale.capture import FRESH_MODULES, WRITES
from upscale.rewrite.gather import Gather, Infill

INTO: dict[Any, Any] = {**WRITES, torch.add: operator.iadd}
# What always makes a tensor of its own, and does not need it again to train.
FRESH = (*FRESH_MODULES, Gather, Infill)


def keep_apart(
    graph: fx.Graph, writers: Iterable[tuple[fx.Node, list[fx.Node]]], views: Set[fx.Node]
) -> None:
    """Where a node writes into memory that is read later, let it write into a copy."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    for writer, written in writers:
        for operand in written if writer in place else ():
            if operand in views or _read_after(operand, writer, place, views):
                with graph.inserting_before(writer):
                    copied = graph.call_method("clone", (operand,))
                writer.replace_input_with(operand, copied)


def write_again(
    graph: fx.Graph, augmented: Iterable[fx.Node], views: Set[fx.Node], held: Mapping[str, Any]
) -> None:
    """Let `x += y` write into x again, which traces as `x + y`, if x is of no other use."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    for node in augmented:
        first = node.args[0] if node in place and not node.kwargs else None
        if (
            node.target in INTO
            and isinstance(first, fx.Node)
            and first.op == "call_module"
            and isinstance(held.get(str(first.target)), FRESH)
            and first not in node.args[1:]
            and not _read_after(first, node, place, views)
        ):
            node.target = INTO[node.target]


def _read_after(
    node: fx.Node, writer: fx.Node, place: Mapping[fx.Node, int], views: Set[fx.Node]
) -> bool:
    return any(
        place.get(user, 0) > place[writer]
        or (user in views and _read_after(user, writer, place, views))
        for user in node.users
        if user is not writer
    )
