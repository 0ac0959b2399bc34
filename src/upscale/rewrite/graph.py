"""The rewrite: apply a plan to a copy of a captured model. It decides nothing."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from upscale.capture import AUGMENTED, NO_GRAD, Captured, Observed
from upscale.capture.node_queries import asks_property, asks_sizes, size_arguments
from upscale.capture.size_guards import require_size
from upscale.planning import Plan
from upscale.planning.plan import Inserted
from upscale.rewrite.building import Building
from upscale.rewrite.fetches import Fetches
from upscale.rewrite.guards import write_out_guards
from upscale.rewrite.shapes import Shapes
from upscale.rewrite.weights import Cutter, Met
from upscale.rewrite.writes import keep_apart, write_again

# What needs memory to lie as it did, and what does the same wherever it lies.
VIEWS: dict[Any, str] = {"view": "reshape", "view_as": "reshape_as"}
# Under this a node of an export keeps the name of the node that it was copied from.
COPIED = "copied_from"
# Where functional convolutions take their number of groups.
GROUPS_ARGUMENT = 6


def rewrite(model: nn.Module, captured: Captured, plan: Plan, met: Met) -> fx.GraphModule:
    """A new module that computes what the masked model computes, with smaller layers.

    `met` are the numbers that columns always meet which the plan folds.
    """
    writer = _Rewriter(model, captured, plan, met)
    for node in captured.graph.nodes:
        writer.visit(node)
    return writer.finish()


class _Rewriter:
    def __init__(self, model: nn.Module, captured: Captured, plan: Plan, met: Met) -> None:
        self._captured, self._plan, self._changes = captured, plan, plan.graph
        self._cutter = Cutter(model, captured.extras, plan, met)
        self._building = Building()
        self._graph, self._held = self._building.graph, self._building.held
        self._graph.set_codegen(captured.graph._codegen)
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._fetches = Fetches(self._building, plan.graph, device)
        self._shapes = Shapes(self._building, captured, plan.graph)
        self._joins = {edge.node: edge for edge in plan.graph.joins}
        self._written: list[fx.Node] = []
        self._writers: list[tuple[fx.Node, list[fx.Node]]] = []
        self._augmented: list[fx.Node] = []
        self._keeping: set[fx.Node] = set()

    def visit(self, node: fx.Node) -> None:
        """Write the steps that a node has become: most often one, itself."""
        for step in self._changes.turns.get(node.name, (node.name,)):
            if step in self._joins:
                edge = self._joins[step]
                self._building.bind(edge.value, self._fetches.fetch(edge))
            elif step in self._changes.gone:
                continue
            elif step in self._changes.inserted:
                self._insert(node, step, self._changes.inserted[step])
            else:
                self._visit_node(node)

    def finish(self) -> fx.GraphModule:
        """The module, once all nodes were visited."""
        write_out_guards(self._graph, self._captured.extras)
        self._graph.eliminate_dead_code(self._has_effect)
        keep_apart(self._graph, self._writers, self._building.views)
        self._graph.lint()
        write_again(self._graph, self._augmented, self._building.views, self._held)
        module = fx.GraphModule(self._building.used(), self._graph, self._captured.name)
        module.training = self._captured.training
        return module

    def _has_effect(self, node: fx.Node) -> bool:
        """Inputs, outputs, checks, guards that capture added, and what later calls read."""
        guard = node.op == "call_module" and node.target in self._captured.extras
        checks = node.target in (torch._assert, require_size)
        return guard or checks or node in self._keeping or node.op in ("placeholder", "output")

    def _insert(self, node: fx.Node, name: str, step: Inserted) -> None:
        """Write a step that the model does not have: a sum, or a small layer beside another."""
        reads = tuple(self._fetches.read(name, value) for value in step.reads)
        if step.weight is None:
            own = name if name == node.name else None
            made = self._graph.create_node("call_function", torch.add, reads, name=own)
            if own is not None:
                made.meta[COPIED] = own
                self._note(node, made)
        else:
            layer, path = self._cutter.gate(step.weight)
            while path in self._held or path in self._captured.kinds:
                path += "_"  # the model, or the export, has something there
            self._held[path] = layer
            made = self._graph.call_module(path, reads)
        self._building.bind(step.makes, made)

    def _visit_node(self, node: fx.Node) -> None:
        observed = self._captured.observed[node.name]
        if node.op == "get_attr":
            self._visit_attribute(node, observed.result)
        elif observed.calls or node.op in ("placeholder", "output"):
            self._copy(node)
        elif asks_sizes(node):
            self._building.results[node.name] = self._shapes.sizes(node)
        elif asks_property(node):
            self._building.results[node.name] = self._shapes.ask(node)
        elif not observed.makes or not set(observed.makes) <= set(observed.takes):
            self._copy(node)  # else it hands on tensors that it was given

    def _visit_attribute(self, node: fx.Node, result: Any) -> None:
        path = str(node.target)
        self._held[path] = self._cutter.attribute(path)
        new = self._graph.create_node("get_attr", path, name=node.name)
        new.meta[COPIED] = node.name
        self._bind(node, self._building.view(new), result)

    def _copy(self, node: fx.Node) -> None:
        self._written = []
        args: Any = fx.map_arg(node.args, lambda operand: self._operand(node, operand))
        kwargs: Any = fx.map_arg(node.kwargs, lambda operand: self._operand(node, operand))
        if node.target is operator.getitem and not isinstance(args[0], fx.Node):
            self._building.results[node.name] = args[0][args[1]]
            return
        if node.op == "call_module":
            path = str(node.target)
            if path not in self._held:
                self._held[path] = self._cutter.module(path, node.name)
        elif node.name in self._changes.groups:
            args, kwargs = _with_groups(args, kwargs, self._changes.groups[node.name])
        if node.name in self._changes.sizes:
            args = _with_sizes(node, args, self._changes.sizes[node.name])
        target, observed = node.target, self._captured.observed[node.name]
        if node.op == "call_method" and target in VIEWS and not _reads_bits(observed):
            # What was written anew may be a slice now, which has no such view.
            target, args, kwargs = VIEWS[target], (*args, *kwargs.values()), {}
        # Scripting cannot read a type of which there is only the text.
        kind = None if isinstance(node.type, str) else node.type
        new = self._graph.create_node(node.op, target, args, kwargs, node.name, kind)
        new.meta[COPIED] = node.name
        if (observed.is_view and not observed.writes) or node.op == "placeholder":
            self._building.view(new)
        self._bind(node, new, observed.result)
        self._note(node, new)
        if observed.keeps:
            self._keeping.add(new)
        if self._written:
            self._writers.append((new, self._written))

    def _note(self, node: fx.Node, new: fx.Node) -> None:
        """Remember what the model wrote as an augmented assignment."""
        if AUGMENTED in node.meta:
            self._augmented.append(new)

    def _bind(self, node: fx.Node, new: fx.Node, result: Any) -> None:
        """Remember where the values of a node's result are found."""
        self._building.results[node.name] = new

        def bind(structure: Any, path: tuple[Any, ...]) -> None:
            if isinstance(structure, str):
                name = self._changes.renamed.get(structure, structure)
                self._building.values[name] = cache(lambda: self._item(new, path))
            elif isinstance(structure, dict):
                for key, inner in structure.items():
                    bind(inner, (*path, key))
            elif isinstance(structure, (list, tuple)):
                for index, inner in enumerate(structure):
                    bind(inner, (*path, index))

        if node.op != "output":
            bind(result, ())

    def _item(self, new: fx.Node, path: tuple[Any, ...]) -> fx.Node:
        for key in path:
            with self._graph.inserting_after(new):
                new = self._graph.call_function(operator.getitem, (new, key))
            self._building.view(new)
        return new

    def _operand(self, node: fx.Node, operand: fx.Node) -> Any:
        """What a node reads in place of an operand: tensors fetched, the rest as it is."""
        observed = self._captured.observed[node.name]
        names = observed.reads[operand.name]
        detached = NO_GRAD in node.meta and observed.keeps
        read = partial(self._detached if detached else self._fetches.read, node.name)
        if isinstance(names, str):
            new = read(names)
            if names in observed.writes and names not in self._captured.state:
                self._written.append(new)
            return new
        if any(isinstance(name, str) for name in tree_leaves(names)):
            return tree_map(read, names)
        return self._building.results[operand.name]

    def _detached(self, node: str, value: str) -> fx.Node:
        """A value as what is written without gradients sees it."""
        read = self._fetches.read(node, value)
        return self._building.view(self._graph.call_method("detach", (read,)))


def _reads_bits(observed: Observed) -> bool:
    """Whether a view takes a tensor's bits for those of another type."""
    return any(call.arguments.get("dtype") is not None for call in observed.calls)


def _with_groups(
    args: tuple[Any, ...], kwargs: dict[str, Any], groups: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A functional convolution's arguments with another number of groups."""
    if len(args) > GROUPS_ARGUMENT:
        return (*args[:GROUPS_ARGUMENT], groups, *args[GROUPS_ARGUMENT + 1 :]), kwargs
    return args, {**kwargs, "groups": groups}


def _with_sizes(node: fx.Node, args: tuple[Any, ...], sizes: Mapping[int, int]) -> tuple[Any, ...]:
    """A reshape's arguments with other sizes; what it infers it goes on inferring."""
    first = size_arguments(node) or 0
    listed = isinstance(args[first], (list, tuple))
    shape = list(args[first] if listed else args[first:])
    for axis, size in sizes.items():
        if not (isinstance(shape[axis], int) and shape[axis] == -1):
            shape[axis] = size
    return (*args[:first], shape) if listed else (*args[:first], *shape)
