"""Inline functions that a graph only calls, where that can be done faithfully.

`torch.fx.wrap("scaled")` leaves one node that calls `scaled(conv, 2.0)`, of which nothing is known
but what it did. It is run once more by the value tracer, and if what that wrote down gives the
same numbers, it takes the node's place:

    scaled(conv, 2.0)     ──►     mul = conv * 2.0;  relu = torch.relu(mul)
"""

from __future__ import annotations

import operator
from collections.abc import Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from upscale.capture.captured import Example, alike, plain_tensors
from upscale.capture.node_queries import asks_sizes
from upscale.capture.observe import run_nodes
from upscale.capture.symbolic_trace import Traced, calls_python
from upscale.capture.value_tracer import TracedValue, Unfaithful, ValueTracer
from upscale.model.layers import copied
from upscale.tools.own_draws import OwnDraws
from upscale.tools.versions import devices_traced


def open_functions(
    traced: Traced, model: nn.Module, example: Example, wrapped: Set[fx.Node]
) -> tuple[Traced, Traced | None]:
    """A graph, and that graph with the functions its `wrapped` nodes call written out, if any.

    A function (`torch.fx.wrap`) is written out only if what is written computes the same on the
    example, number by number. Else it stays one node, which is doubted if the function decides
    on anything: what it does on the example may not be all it does.
    """
    twin = copied(model, {})
    for path, extra in traced.extras.items():
        setattr(twin, path, extra.clone() if isinstance(extra, Tensor) else extra)
    inliner = _Inliner(twin, traced.graph, wrapped)
    given = traced.inputs(twin, example.copied())
    try:
        with torch.no_grad(), inliner.draws:
            run_nodes(inliner, given)
    except Exception:  # the model's own code runs and may raise anything
        return traced, None
    traced = replace(traced, doubted=frozenset(node.name for node in inliner.deciding))
    if inliner.closed.keys() == wrapped:
        return traced, None
    closed = frozenset(inliner.closed[n].name for n in inliner.deciding & inliner.closed.keys())
    return traced, Traced(inliner.opened, traced.extras, traced.way, closed)


class _Inliner(fx.Interpreter):
    """Runs a graph, and writes it anew with functions opened."""

    def __init__(self, module: nn.Module, graph: fx.Graph, wrapped: Set[fx.Node]) -> None:
        super().__init__(module, graph=graph)
        self.opened = fx.Graph()
        self.opened.set_codegen(graph._codegen)
        self.draws = OwnDraws()
        self.deciding: set[fx.Node] = set()
        self.closed: dict[fx.Node, fx.Node] = {}
        self._wrapped = wrapped
        self._new: dict[fx.Node, Any] = {}
        self._sizes: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        if _is_size(n, self._sizes):
            self._sizes.add(n)
        inside, expected = self._look_into(n) if n in self._wrapped else (None, None)
        versions = self._versions(n)
        self.draws.restart()
        result = super().run_node(n)
        if inside is not None and versions == self._versions(n) and alike(expected, result):
            operands = [self._new[operand] for operand in n.all_input_nodes]
            given = dict(zip(inside.find_nodes(op="placeholder"), operands, strict=True))
            self._new[n] = self.opened.graph_copy(inside, given)
        else:
            self._new[n] = self._copy(n)
            if n in self._wrapped:
                self.closed[n] = self._new[n]
        return result

    def _copy(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            args: Any = fx.map_arg(node.args, lambda operand: self._new[operand])
            if isinstance(args[0], (tuple, list)):
                return args[0][args[1]]  # an opened function returns its results one by one
        return self.opened.node_copy(node, lambda operand: self._new[operand])

    def _look_into(self, node: fx.Node) -> tuple[fx.Graph, Any] | tuple[None, None]:
        """A function's graph and what it gives, if the function can and should be opened."""
        function: Any = node.target
        values = {operand: self.env[operand] for operand in node.all_input_nodes}
        tracer = ValueTracer(function.__qualname__, node.stack_trace or "")
        try:
            given: dict[fx.Node, Any] = {
                operand: _argument(tracer, operand, value, decides=operand in self._sizes)
                for operand, value in values.items()
            }
            args, kwargs = _plain(fx.map_arg((node.args, node.kwargs), given.__getitem__))
            with devices_traced():
                graph = tracer.finish(function(*args, **kwargs))
            weighs = any(isinstance(value, nn.Parameter) for value in values.values())
            if tracer.decides and not weighs:
                return None, None  # sizes are given up only where there is a layer to gain
            self.draws.restart()
            runner = fx.Interpreter(nn.Module(), graph=graph)
            return graph, run_nodes(runner, values.values())
        except Exception:  # the function's own code runs on proxies and may raise anything
            return None, None
        finally:
            if tracer.decides:
                self.deciding.add(node)

    def _versions(self, node: fx.Node) -> list[int]:
        """How often each tensor that a node is given was written into."""
        given = [self.env[operand] for operand in node.all_input_nodes]
        return [tensor._version for tensor in plain_tensors(given)]


def _argument(tracer: ValueTracer, node: fx.Node, value: Any, *, decides: bool) -> TracedValue:
    numbers = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (numbers or isinstance(value, (Tensor, tuple, list))):
        raise Unfaithful("it is given something that is neither tensor nor number")
    return tracer.give(node.name, value, decides=decides)


def _plain(structure: Any) -> Any:
    """Arguments as Python's own lists and dicts, which a function may write into."""
    if isinstance(structure, dict):
        return {key: _plain(value) for key, value in structure.items()}
    if isinstance(structure, list):
        return [_plain(value) for value in structure]
    return tuple(map(_plain, structure)) if type(structure) is tuple else structure


def _is_size(node: fx.Node, sizes: set[fx.Node]) -> bool:
    """Whether a node's value is known from sizes alone."""
    computed = node.op == "call_function" and not calls_python(node) and node.all_input_nodes
    return asks_sizes(node) or bool(computed and sizes.issuperset(node.all_input_nodes))
