"""Writes in place: `x += y` writes into x, which `torch.fx` takes for `x + y`.

The two differ where x, or what shares memory with it, is read later:

    y = x[:, :4]                           y = x[:, :4]
    x += 1               is not            z = x + 1
    return y, x                            return y, z

There the write is put back; elsewhere the operation stays one that writes nothing, which more is
known about, and is marked: an export may write there too. A buffer that is bound to something else
(`self.m = y`) holds that in the next call: it is written at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

from upscale.capture.node_queries import asks_property, asks_sizes
from upscale.model.layers import modules_of

AUGMENTED = "augmented"
REBINDS = "rebinds"
NO_GRAD = "no_grad"
# What `x + y` calls, and what `x += y` does.
WRITES: dict[Any, Any] = {
    getattr(operator, name): getattr(operator, f"i{name.rstrip('_')}")
    for name in ("add", "mul", "sub", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor")
}
# What always makes a tensor of its own.
FRESH_MODULES = (nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.Linear)
FRESH_FUNCTIONS = (*WRITES, operator.matmul, torch.cat, torch.stack)


def put_writes_back(graph: fx.Graph, model: nn.Module) -> None:
    """Let augmented assignments write whose first operand may be read later."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    kin = _kin(graph, model)
    for node in graph.nodes:
        if AUGMENTED in node.meta:
            before = (other for other in kin[node] if place[other] < place[node])
            if any(place[user] > place[node] for other in before for user in other.users):
                write_back(node)


def write_back(node: fx.Node) -> None:
    """Let an augmented assignment write."""
    node.target = WRITES[node.target]
    del node.meta[AUGMENTED]


def write_bound(graph: fx.Graph, bound: Mapping[str, fx.Node]) -> None:
    """Let a graph write what buffers were bound to, by path, after all else."""
    (last,) = graph.find_nodes(op="output")
    for path, value in bound.items():
        if not _is_written(value, path):
            with graph.inserting_before(last):
                copied = graph.call_method("copy_", (graph.get_attr(path), value))
            copied.stack_trace = value.stack_trace
            copied.meta |= {REBINDS: True, NO_GRAD: True}


def _is_written(node: fx.Node, path: str) -> bool:
    """Whether a node is a buffer itself, after augmented assignments."""
    while AUGMENTED in node.meta or node.target in WRITES.values():
        node = node.all_input_nodes[0]
    return node.op == "get_attr" and node.target == path


def _kin(graph: fx.Graph, model: nn.Module) -> dict[fx.Node, list[fx.Node]]:
    """For each node, all that may share its memory, as far as that can be told without running."""
    kin: dict[fx.Node, list[fx.Node]] = {}
    numbers: set[fx.Node] = set()
    fresh = {name for name, m in modules_of(model).items() if isinstance(m, FRESH_MODULES)}
    for node in graph.nodes:
        kin[node] = [node]
        given = node.all_input_nodes
        if asks_sizes(node) or asks_property(node) or (given and numbers.issuperset(given)):
            numbers.add(node)
            continue
        if AUGMENTED in node.meta:
            given = given[:1]
        elif node.target in (fresh if node.op == "call_module" else FRESH_FUNCTIONS):
            continue
        for other in given:
            if other not in numbers and kin[other] is not kin[node]:
                kin[other] += kin[node]
                for own in kin[node]:
                    kin[own] = kin[other]
    return kin
