"""Augmented assignments: `x += y` writes into x, which `torch.fx` takes for `x + y`.

The two differ where x, or what shares memory with it, is read later. There the write is put back;
elsewhere the operation stays one that writes nothing, which more is known about, and is marked:
an export may write there too. A buffer that is bound to something else (`self.m = y`) holds that
in the next call: it is written at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from upscale.capture.node_queries import asks_property, asks_sizes

AUGMENTED = "augmented"
REBINDS = "rebinds"
NO_GRAD = "no_grad"
# What a proxy has of its own; to set anything else would be lost.
SET = ("tracer", "node", "root", "attr", "_node")
WRITES: dict[Any, Any] = {
    operator.add: operator.iadd,
    operator.mul: operator.imul,
    operator.sub: operator.isub,
    operator.truediv: operator.itruediv,
    operator.floordiv: operator.ifloordiv,
    operator.mod: operator.imod,
    operator.pow: operator.ipow,
    operator.and_: operator.iand,
    operator.or_: operator.ior,
    operator.xor: operator.ixor,
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
    __ifloordiv__ = _augmented(operator.floordiv)
    __imod__ = _augmented(operator.mod)
    __ipow__ = _augmented(operator.pow)
    __iand__ = _augmented(operator.and_)
    __ior__ = _augmented(operator.or_)
    __ixor__ = _augmented(operator.xor)

    def __getattr__(self, k: str) -> fx.proxy.Attribute:
        return AugmentedAttribute(self, k)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in SET:
            raise TypeError(f"a graph cannot set {name} of a tensor")
        super().__setattr__(name, value)

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write into part of a buffer; elsewhere a graph would not know who reads it later."""
        if self.node.op != "get_attr":
            raise TypeError("a proxy does not support item assignment")
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})


class AugmentedAttribute(AugmentedProxy, fx.proxy.Attribute):
    """What `x.T` or `x.data` gives, which may share memory with x."""


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


def write_bound(graph: fx.Graph, model: nn.Module) -> None:
    """Let a graph write what buffers of the traced model were bound to, after all else."""
    (last,) = graph.find_nodes(op="output")
    for prefix, module in model.named_modules():
        for name, bound in module._buffers.items():
            path = f"{prefix}.{name}" if prefix else name
            if isinstance(bound, fx.Proxy) and not _is_written(bound.node, path):
                with graph.inserting_before(last):
                    buffer = graph.get_attr(path)
                    copied = graph.call_method("copy_", (buffer, bound.node))
                copied.stack_trace = bound.node.stack_trace
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
