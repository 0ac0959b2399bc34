"""Augmented assignments: `x += y` writes into x, which `torch.fx` takes for `x + y`.

The two differ where x, or what shares memory with it, is read later. There the write is put back;
elsewhere the operation stays one that writes nothing, which more is known about, and is marked:
an export may write there too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from upscale.capture.questions import asks_property, asks_sizes

AUGMENTED = "augmented"
WRITES: dict[Any, Any] = {
    operator.add: operator.iadd,
    operator.mul: operator.imul,
    operator.sub: operator.isub,
    operator.truediv: operator.itruediv,
}
# What always makes a tensor of its own.
FRESH_MODULES = (nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm, nn.Linear)
FRESH_FUNCTIONS = (*WRITES, operator.matmul, torch.cat, torch.stack)


def _augmented(operation: Callable[[Any, Any], Any]) -> Callable[[fx.Proxy, Any], Any]:
    def write(proxy: fx.Proxy, other: Any) -> Any:
        made = operation(proxy, other)
        made.node.meta[AUGMENTED] = True
        return made

    return write


class AugmentedProxy(fx.Proxy):
    """Marks what augmented assignments make."""

    __iadd__ = _augmented(operator.add)
    __imul__ = _augmented(operator.mul)
    __isub__ = _augmented(operator.sub)
    __itruediv__ = _augmented(operator.truediv)


def put_writes_back(graph: fx.Graph, model: nn.Module) -> None:
    """Let augmented assignments write whose first operand may be read later."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    kin = _kin(graph, model)
    for node in graph.nodes:
        if AUGMENTED in node.meta:
            before = (other for other in kin[node] if place[other] < place[node])
            if any(place[user] > place[node] for other in before for user in other.users):
                node.target = WRITES[node.target]
                del node.meta[AUGMENTED]


def _kin(graph: fx.Graph, model: nn.Module) -> dict[fx.Node, list[fx.Node]]:
    """For each node, all that may share its memory, as far as that can be told without running."""
    kin: dict[fx.Node, list[fx.Node]] = {}
    numbers: set[fx.Node] = set()
    for node in graph.nodes:
        kin[node] = [node]
        given = node.all_input_nodes
        if asks_sizes(node) or asks_property(node) or (given and numbers.issuperset(given)):
            numbers.add(node)
            continue
        if AUGMENTED in node.meta:
            given = given[:1]
        elif _is_fresh(node, model):
            continue
        for other in given:
            if other not in numbers and kin[other] is not kin[node]:
                kin[other] += kin[node]
                for own in kin[node]:
                    kin[own] = kin[other]
    return kin


def _is_fresh(node: fx.Node, model: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), FRESH_MODULES)
    return node.op == "call_function" and node.target in FRESH_FUNCTIONS
