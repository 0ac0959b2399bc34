"""The rewrite: apply a plan to a copy of a captured model. It decides nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from upscale.capture import AUGMENTED, NO_GRAD, Captured, Observed
from upscale.capture.guards import require_size
from upscale.capture.node_queries import (
    asks_property,
    asks_rank,
    asks_sizes,
    axis_asked,
)
from upscale.planning import Edge, Piece, Plan, Spread, Sum, added, alone, computed_once
from upscale.rewrite.arguments import with_groups, with_sizes
from upscale.rewrite.gather import Gather, Infill
from upscale.rewrite.guards import write_out_guards
from upscale.rewrite.weights import Cutter
from upscale.rewrite.writes import keep_apart, write_again

# What needs memory to lie as it did, and what does the same wherever it lies.
VIEWS: dict[Any, str] = {"view": "reshape", "view_as": "reshape_as"}
# What every graph module has under a name of its own.
TAKEN = frozenset(dir(fx.GraphModule({}, fx.Graph())))


def rewrite(
    model: nn.Module, captured: Captured, plan: Plan, met: Mapping[str, tuple[float, ...]]
) -> fx.GraphModule:
    """A new module that computes what the masked model computes, with smaller layers.

    `met` are the numbers that columns always meet which the plan folds.
    """
    writer = _Writer(model, captured, plan, met)
    for node in captured.graph.nodes:
        writer.visit(node)
    return writer.finish()


class _Writer:
    def __init__(
        self,
        model: nn.Module,
        captured: Captured,
        plan: Plan,
        met: Mapping[str, tuple[float, ...]],
    ) -> None:
        self._captured, self._plan = captured, plan
        self._cutter = Cutter(model, captured.extras, plan, met)
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._graph = fx.Graph()
        self._graph.set_codegen(captured.graph._codegen)
        self._held: dict[str, Any] = {}
        self._values: dict[str, Callable[[], fx.Node]] = {}
        self._results: dict[str, Any] = {}
        self._fetched: dict[tuple[str, int, tuple[Piece, ...]], fx.Node] = {}
        self._slices: dict[tuple[fx.Node, int, int, int], fx.Node] = {}
        self._edges: dict[tuple[str, str], list[Edge]] = {}
        self._views: set[fx.Node] = set()
        self._written: list[fx.Node] = []
        self._writers: list[tuple[fx.Node, list[fx.Node]]] = []
        self._augmented: list[fx.Node] = []
        self._keeping: set[fx.Node] = set()
        self._joins = {edge.node: edge for edge in plan.joins}
        # What the model has no value of, by what has as many axes.
        self._like = {each.made: captured.observed[node].result for node, each in plan.sums.items()}
        self._like |= {computed_once(value): value for value in plan.repeats}
        self._gated = {each.node: weight for weight, each in plan.gated.items()}
        for each in plan.gated.values():
            value = captured.observed[each.node].result
            self._like |= {alone(value): value, added(value): value}
        for edge in plan.edges:
            self._edges.setdefault((edge.node, edge.value), []).append(edge)

    def visit(self, node: fx.Node) -> None:
        observed = self._captured.observed[node.name]
        if node.name in self._joins:
            edge = self._joins[node.name]
            joined = self._fetch(edge)
            self._values[edge.value] = lambda: joined
        elif node.name in self._plan.sums:
            self._visit_sum(node, self._plan.sums[node.name])
        elif node.name in self._plan.gone:
            return
        elif node.op == "get_attr":
            self._visit_attribute(node, observed.result)
        elif asks_sizes(node):
            self._results[node.name] = self._shape(node)
        elif asks_property(node):
            self._results[node.name] = self._property(node)
        elif self._is_alias(node):
            return
        else:
            self._copy(node)

    def finish(self) -> fx.GraphModule:
        write_out_guards(self._graph, self._captured.extras)
        self._graph.eliminate_dead_code(self._has_effect)
        keep_apart(self._graph, self._writers, self._views)
        self._graph.lint()
        used = {str(n.target) for n in self._graph.nodes if n.op in ("call_module", "get_attr")}
        held = {path: thing for path, thing in self._held.items() if path in used}
        write_again(self._graph, self._augmented, self._views, held)
        held = self._without_clashes(held)
        module = fx.GraphModule(held, self._graph, self._captured.name)
        module.training = self._captured.training
        return module

    def _has_effect(self, node: fx.Node) -> bool:
        """Inputs, outputs, checks, guards that capture added, and what later calls read."""
        guard = node.op == "call_module" and node.target in self._captured.extras
        checks = node.target in (torch._assert, require_size)
        return guard or checks or node in self._keeping or node.op in ("placeholder", "output")

    def _without_clashes(self, held: dict[str, Any]) -> dict[str, Any]:
        """Give what is named like a part of every graph module another name."""
        renamed = {path: unclashing(path) for path in held}
        for node in self._graph.nodes:
            if node.op in ("call_module", "get_attr"):
                node.target = renamed[node.target]
        return {renamed[path]: thing for path, thing in held.items()}

    # Nodes.

    def _visit_attribute(self, node: fx.Node, result: Any) -> None:
        path = str(node.target)
        self._held[path] = self._cutter.attribute(path)
        new = self._graph.create_node("get_attr", path, name=node.name)
        self._bind(node, new, result)
        self._views.add(new)

    def _visit_sum(self, node: fx.Node, described: Sum) -> None:
        """Add the parts of the operands; put the rest beside them, if that pays."""
        if described.parts and node.name not in self._plan.gone:
            parts = tuple(self._read(node.name, part) for part in described.parts)
            added = self._graph.create_node("call_function", torch.add, parts, name=node.name)
            self._values[self._computed(described.made)] = lambda: added
            self._note(node, added)
        if described.whole in self._joins:
            edge = self._joins[described.whole]
            joined = self._fetch(edge)
            self._values[edge.value] = lambda: joined

    def _is_alias(self, node: fx.Node) -> bool:
        """A node without operations that hands on tensors it was given."""
        observed = self._captured.observed[node.name]
        names = [name for name in _leaves(observed.result) if name is not None]
        given = {name for read in observed.reads.values() for name in _leaves(read)}
        silent = not observed.calls and node.op not in ("placeholder", "output")
        return silent and bool(names) and given.issuperset(names)

    def _copy(self, node: fx.Node) -> None:
        self._written = []
        args: Any = fx.map_arg(node.args, lambda operand: self._operand(node, operand))
        kwargs: Any = fx.map_arg(node.kwargs, lambda operand: self._operand(node, operand))
        if node.target is operator.getitem and not isinstance(args[0], fx.Node):
            self._results[node.name] = args[0][args[1]]
            return
        if node.op == "call_module":
            path = str(node.target)
            if path not in self._held:
                self._held[path] = self._cutter.module(
                    path,
                    groups=self._plan.groups.get(node.name),
                    width=self._plan.widths.get(node.name),
                    constant=node.name in self._plan.constants,
                )
        elif node.name in self._plan.groups:
            args, kwargs = with_groups(args, kwargs, self._plan.groups[node.name])
        if node.name in self._plan.sizes:
            args = with_sizes(node, args, self._plan.sizes[node.name])
        target, observed = node.target, self._captured.observed[node.name]
        if node.op == "call_method" and target in VIEWS and not _reads_bits(observed):
            # What was written anew may be a slice now, which has no such view.
            target, args, kwargs = VIEWS[target], (*args, *kwargs.values()), {}
        new = self._graph.create_node(
            node.op, target, args, kwargs, name=node.name, type_expr=_type_of(node)
        )
        if (observed.is_view and not observed.writes) or node.op == "placeholder":
            self._views.add(new)
        self._bind(node, new, observed.result)
        self._note(node, new)
        if self._captured.keeps(node.name):
            self._keeping.add(new)
        if self._written:
            self._writers.append((new, self._written))
        if node.name in self._gated:
            self._add_gate(observed.result, self._gated[node.name])

    def _note(self, node: fx.Node, new: fx.Node) -> None:
        """Remember what the model wrote as an augmented assignment."""
        if AUGMENTED in node.meta:
            self._augmented.append(new)

    def _add_gate(self, value: str, weight: str) -> None:
        """Add what a gate gives for channels that a layer does not read."""
        gating = self._plan.gated[weight]
        path = self._unused(f"{gating.layer}_gated")
        self._held[path] = self._cutter.gate(weight)
        read = self._graph.call_module(path, (self._read(gating.beside, gating.gate),))
        self._values[added(value)] = lambda: read
        parts = tuple(self._read(gating.adding, part) for part in (alone(value), added(value)))
        summed = self._graph.call_function(torch.add, parts)
        self._values[self._computed(value)] = lambda: summed

    def _computed(self, value: str) -> str:
        """The name of what is computed of a value: of channels that repeat, each once."""
        return computed_once(value) if value in self._plan.repeats else value

    def _unused(self, path: str) -> str:
        """A path at which neither the model nor the export has anything."""
        while path in self._held or path in self._captured.kinds:
            path += "_"
        return path

    def _bind(self, node: fx.Node, new: fx.Node, result: Any) -> None:
        """Remember where the values of a node's result are found."""
        self._results[node.name] = new

        def bind(structure: Any, path: tuple[Any, ...]) -> None:
            if isinstance(structure, str):
                if node.name in self._gated:
                    structure = alone(structure)
                self._values[self._computed(structure)] = _once(lambda: self._item(new, path))
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
            self._views.add(new)
        return new

    # Operands.

    def _operand(self, node: fx.Node, operand: fx.Node) -> Any:
        """What a node reads in place of an operand: tensors fetched, the rest as it is."""
        names = self._captured.observed[node.name].reads[operand.name]
        detached = NO_GRAD in node.meta and self._captured.keeps(node.name)
        read = partial(self._detached if detached else self._read, node.name)
        if isinstance(names, str):
            new = read(names)
            written = self._captured.observed[node.name].writes
            if names in written and names not in self._captured.state:
                self._written.append(new)
            return new
        if any(isinstance(name, str) for name in _leaves(names)):
            return tree_map(read, names)
        return self._results[operand.name]

    def _detached(self, node: str, value: str) -> fx.Node:
        """A value as what is written without gradients sees it."""
        new = self._graph.call_method("detach", (self._read(node, value),))
        self._views.add(new)
        return new

    def _read(self, node: str, value: str) -> Any:
        edges = self._edges.get((node, value))
        if not edges:
            return self._values[value]()
        first, *rest = edges
        new = self._fetch(first)
        for edge in rest:
            new = self._take(new, edge.axis, edge.pieces)
        return new

    def _fetch(self, edge: Edge) -> fx.Node:
        """Materialise the channels an edge wants: the one way any tensor is rearranged."""
        key = (edge.value, edge.axis, edge.pieces)
        if key not in self._fetched:
            fetched = self._take(None, edge.axis, edge.pieces)
            if edge.spread is not None:
                fetched = self._spread(fetched, edge.axis, edge.spread)
            self._fetched[key] = fetched
        return self._fetched[key]

    def _spread(self, flat: fx.Node, axis: int, spread: Spread) -> fx.Node:
        """Make a grid of channels that lie along one axis."""
        grid = self._graph.call_method("unflatten", (flat, axis, spread.sizes))
        if spread.order != tuple(range(len(spread.order))):
            grid = self._graph.call_method("permute", (grid, *spread.order))
        self._views.add(grid)
        return grid

    def _take(self, source: fx.Node | None, axis: int, pieces: tuple[Piece, ...]) -> fx.Node:
        def part(piece: Piece) -> fx.Node:
            return self._piece(source or self._values[piece.value](), axis, piece)

        if len(pieces) == 1:
            return part(pieces[0])
        first, last = pieces[0], pieces[-1]
        if len(pieces) == 2 and first.zeros != last.zeros:
            if last.zeros:
                return self._pad(part(first), axis, first.value, 0, last.length)
            return self._pad(part(last), axis, last.value, first.length, 0)
        return self._graph.call_function(torch.cat, ([part(piece) for piece in pieces], axis))

    def _pad(self, source: fx.Node, axis: int, value: str, before: int, after: int) -> fx.Node:
        """A value, or a part of it, with channels of zeros before and after."""
        pad = [0] * (2 * (self._axes(value) - 1 - axis)) + [before, after]
        return self._graph.call_function(nn.functional.pad, (source, pad))

    def _piece(self, source: fx.Node, axis: int, piece: Piece) -> fx.Node:
        if piece.zeros:
            none = self._graph.call_function(torch.narrow, (source, axis, 0, 0))
            return self._pad(none, axis, piece.value, 0, piece.length)
        if piece.indices is not None:
            path = f"gathers.{sum(name.startswith('gathers.') for name in self._held)}"
            if piece.fills:
                axes = self._axes(piece.value)
                self._held[path] = Infill(
                    axis, piece.indices, self._device, axes=axes, rows=piece.rows
                )
            else:
                self._held[path] = Gather(axis, piece.indices, self._device, rows=piece.rows)
            return self._graph.call_module(path, (source,))
        if piece.whole:
            return source
        key = (source, axis, piece.start, piece.length)
        if key not in self._slices:
            self._slices[key] = self._graph.call_function(torch.narrow, key)
            self._views.add(self._slices[key])
        return self._slices[key]

    def _axes(self, value: str) -> int:
        """How many axes a value has; a part of one has as many as the whole."""
        return len(self._captured.values[self._like.get(value, value)].shape)

    # Shapes.

    def _shape(self, node: fx.Node) -> Any:
        """Sizes as the original model sees them: a line's is a number, the others are asked."""
        (operand,) = node.all_input_nodes
        value = self._captured.observed[node.name].reads[operand.name]
        rank = len(self._captured.values[value].shape)
        axis = axis_asked(node)
        if axis is not None:
            return self._size(value, axis % rank)
        return tuple(self._size(value, axis) for axis in range(rank))

    def _property(self, node: fx.Node) -> Any:
        """What pruning does not change, asked of a tensor that is there."""
        (operand,) = node.all_input_nodes
        value = self._captured.observed[node.name].reads[operand.name]
        if asks_rank(node):
            return len(self._captured.values[value].shape)
        anchor = self._values[self._plan.asked[value].anchor]()
        return self._graph.create_node(node.op, node.target, (anchor, *node.args[1:]))

    def _size(self, value: str, axis: int) -> Any:
        asked = self._plan.asked[value]
        if axis in asked.fixed:
            return asked.fixed[axis]
        return self._graph.call_method("size", (self._values[asked.anchor](), asked.axes[axis]))


def _reads_bits(observed: Observed) -> bool:
    """Whether a view takes a tensor's bits for those of another type."""
    return any(call.argument("dtype") is not None for call in observed.calls)


def _type_of(node: fx.Node) -> Any:
    """A node's type, unless it is only the text of one, which scripting cannot read."""
    return None if isinstance(node.type, str) else node.type


def unclashing(path: str) -> str:
    """The path that something has in an export: graph modules have names of their own."""
    first, dot, rest = path.partition(".")
    return f"{first}_{dot}{rest}" if first in TAKEN else path


def _once(make: Callable[[], fx.Node]) -> Callable[[], fx.Node]:
    made: list[fx.Node] = []

    def get() -> fx.Node:
        if not made:
            made.append(make())
        return made[0]

    return get


def _leaves(structure: Any) -> list[Any]:
    return tree_leaves(structure, is_leaf=lambda leaf: leaf is None)
