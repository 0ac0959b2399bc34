"""Writing a plan: where everything lies and what steps want become edges, cuts and sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from upscale.channels import Positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.relations import GRID, HeadGrid, Line, Pass, Reduce
from upscale.lowering.lowered import Lowered
from upscale.names import Parameter, by_name
from upscale.planning.laying import Draft, Join, Laid, Wanted, lay_out
from upscale.planning.layouts import Layouts, runs, same
from upscale.planning.plan import (
    Edge,
    GraphChanges,
    Inserted,
    Piece,
    Plan,
    Report,
    SizesRead,
    Spread,
    WeightChanges,
    bytes_copied,
    fetched,
)
from upscale.targets.prices import MOST_ZEROS
from upscale.targets.target import Fetched, FetchWork, LayerWork, PassWork, Pricing, Work


class Fetching:
    """Makes edges, and adds to `work` what they have to fetch."""

    def __init__(self, draft: Draft, laid: Laid, pricing: Pricing, work: list[Work]) -> None:
        self._flow, self._live, self._layouts = draft.flow, draft.live.lines, laid.layouts
        self._in_order, self._pricing = draft.order == "none", pricing
        self._work = work

    def read(self, node: str, line: Line, wanted: Positions) -> Edge:
        """How a node reads wanted positions of a line."""
        found, anchor = self._layouts.find(line, wanted), self._layouts.anchor(line, self._live)
        return self.join(node, Join(line, wanted, found, anchor, self._layouts.joins(line)))

    def join(self, node: str, join: Join) -> Edge:
        """How a selection is put together for all who read it."""
        line, found = join.line, join.found
        pieces = self._pieces(join)
        weight = self._flow.nbytes[line.value] // max(1, self._flow.sizes[line])
        axis, spread = line.axis, None
        if line.axis == GRID:
            axis = next((r.axis for r in found.roots if r is not None), join.anchor.axis)
            spread = _spread(self._flow.grids[line], axis, len(join.layout))
        axes = len(self._flow.shapes[pieces[0].value])
        return Edge(node, line.value, axis, axes, tuple(pieces), weight, spread, join.joined)

    def _pieces(self, join: Join) -> list[Piece]:
        """The pieces of what was found, in order; of nothing, one that holds no channel."""
        found, joined = join.found, join.joined
        if not len(found.root):
            return [Piece(join.anchor.value, 0, 0)]
        breaks = np.flatnonzero(np.diff(found.root)) + 1
        filled = [root for root in found.roots if root is not None]
        most = 1 if self._in_order else MOST_ZEROS
        if not joined and len(filled) == 1 < len(found.roots) and len(breaks) > most:
            mine = found.root == found.roots.index(filled[0])
            places = np.full(len(mine), -1)
            places[mine] = self._layouts.place(filled[0], found.position[mine])
            only = self._part(filled[0], len(places), len(breaks))
            self._work.append(FetchWork((only,), joined=False))
            return [self._gathered(filled[0], places)]
        pieces: list[Piece] = []
        parts: list[Fetched] = []
        for part in np.split(np.arange(len(found.root)), breaks):
            root = found.roots[int(found.root[part[0]])]
            if root is None:
                pieces.append(Piece(join.anchor.value, 0, len(part), zeros=True))
            else:
                places = self._layouts.place(root, found.position[part])
                stretches = runs(places)
                parts.append(self._part(root, len(places), len(stretches)))
                pieces += self._taken(root, places, stretches, parts[-1], joined=joined)
        if parts:
            self._work.append(FetchWork(tuple(parts), joined))
        return pieces

    def _taken(
        self,
        root: Line,
        places: Positions,
        stretches: list[tuple[int, int]],
        part: Fetched,
        *,
        joined: bool,
    ) -> list[Piece]:
        """Channels of one tensor: a slice for each stretch, or one gather."""
        if len(stretches) > 1 and (
            self._in_order or self._pricing.pays_to_gather(self._flow, part, joined=joined)
        ):
            return [self._gathered(root, places)]
        size = len(self._layouts.of(root))
        return [
            Piece(root.value, start, length, whole=length == size) for start, length in stretches
        ]

    def _part(self, root: Line, channels: int, stretches: int) -> Fetched:
        return Fetched(root, channels, stretches, whole=channels == len(self._layouts.of(root)))

    def _gathered(self, root: Line, places: Positions) -> Piece:
        by_rows = not self._in_order and self._pricing.gathers_rows(self._flow, root)
        return Piece(root.value, 0, len(places), tuple(places.tolist()), rows=by_rows)

    def asked(self, value: str) -> SizesRead:
        """Where to ask for the sizes of a value, and what to tell of its lines."""
        shape, lines = self._flow.shapes[value], self._flow.lines.get(value, ())
        grid = self._flow.grids.get(lines[0]) if lines else None
        axes = grid.axes if grid else tuple(range(len(shape)))
        fixed = {axis: shape[axis] for axis, flat in enumerate(axes) if flat is None}
        fixed |= {line.axis: shape[line.axis] for line in lines if line.axis != GRID}
        anchor = self._layouts.anchor(lines[0], self._live).value if lines else value
        if grid and anchor == value:
            axes = tuple(range(len(shape)))
        return SizesRead(anchor, axes, fixed)


def _spread(grid: HeadGrid, axis: int, channels: int) -> Spread:
    """How to spread fetched channels, which lie along an axis, over a grid."""
    count = len(grid.sizes)
    spread = iter(range(axis, axis + count))
    order = tuple(
        next(spread) if flat is None else flat + (count - 1) * (flat > axis) for flat in grid.axes
    )
    last = channels // grid.blocks if grid.blocks else grid.sizes[-1]
    return Spread((*grid.sizes[:-1], last), order)


Cuts = dict[str, dict[int, Positions]]


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A draft, what it does to the graph and to parameters, and where it puts everything.

    `price` is what it should take, in nanoseconds.
    """

    draft: Draft
    graph: GraphChanges
    cuts: Cuts
    layouts: Layouts
    price: float


def write(draft: Draft, pricing: Pricing) -> Written:
    """Lay a draft out, and write down what that does to nodes and parameters."""
    laid = lay_out(draft)
    writer = _PlanWriter(draft, laid, pricing)
    for step in draft.flow.steps:
        writer.visit(step)
    price = pricing.price(draft.flow, writer.work)
    return Written(draft, writer.changes(), writer.cuts, laid.layouts, price)


class _PlanWriter:
    def __init__(self, draft: Draft, laid: Laid, pricing: Pricing) -> None:
        self._draft, self._laid, self._flow = draft, laid, draft.flow
        self.work: list[Work] = []
        self._fetching = Fetching(draft, laid, pricing, self.work)
        self._layers: dict[str, list[Reduce]] = defaultdict(list)
        self._passes: dict[str, list[Pass]] = defaultdict(list)
        for step, layer in draft.flow.layers:
            self._layers[step.node].append(layer)
        for step, relation in draft.flow.passes:
            self._passes[step.node].append(relation)
        self.cuts: Cuts = defaultdict(dict)
        self._edges: list[Edge] = []
        self._joins: list[Edge] = []
        self._asked: dict[str, SizesRead] = {}
        self._sizes: dict[str, dict[int, int]] = defaultdict(dict)
        self._widths: dict[str, int] = {}
        self._gone: set[str] = set()

    def changes(self) -> GraphChanges:
        """What happens to the graph."""
        return GraphChanges(
            edges=tuple(self._edges),
            joins=tuple(self._joins),
            gone=frozenset(self._gone),
            constants=frozenset(self._laid.constants),
            sizes=dict(self._sizes),
            asked=self._asked,
            groups=self._laid.groups,
            widths=self._widths,
        )

    def visit(self, step: Step) -> None:
        """Write down what happens to one step."""
        if step.node in self._laid.joins:
            self._joins.append(self._fetching.join(step.node, self._laid.joins[step.node]))
        elif step.node not in self._draft.live.steps or not step.executed:
            self._gone.add(step.node)
        else:
            if step.shape_only:
                self._asked |= {value: self._fetching.asked(value) for value in step.reads}
            else:
                self._fetch(step)
            self._compute(step)
            for line in step.resize:
                self._sizes[step.node][line.axis] = len(self._laid.layouts.of(line))

    def _compute(self, step: Step) -> None:
        """Note what a step computes; a module that works on each channel is fitted."""
        for layer in self._layers[step.node]:
            columns = len(self._draft.read[layer.layer])
            rows = len(self._laid.layouts.of(layer.out))
            self.work.append(LayerWork(layer, columns, rows))
        for relation in self._passes[step.node]:
            width = len(self._laid.layouts.of(relation.out))
            self.work.append(PassWork(relation.out, width))
            if step.module:
                self._widths[step.node] = width

    def _fetch(self, step: Step) -> None:
        """Make an edge of every read that is not of a whole tensor, and cut parameters."""
        wanted, layouts = self._laid.wanted[step.node], self._laid.layouts
        for line, positions in wanted.items():
            if isinstance(line.value, Parameter):
                self.cuts[line.value][line.axis] = positions
        for value in step.reads:
            if not isinstance(value, Parameter):
                self._read(step, value, wanted)
        made = {relation.out.value for relation in step.relations if relation.out is not None}
        for line, positions in wanted.items():
            if line.value in made and not same(positions, layouts.of(line)):
                raise PlanError(f"{step.node} would have to rearrange channels within")

    def _read(self, step: Step, value: str, wanted: Wanted) -> None:
        """An edge for each line of a value that is not read whole; each takes of what is left."""
        left = 1.0
        unread = self._laid.unread.get(step.node)
        if unread is not None and unread.value == value:
            zeros = (Piece(value, 0, 1, zeros=True),)
            axes = len(self._flow.shapes[value])
            self._edges.append(Edge(step.node, value, unread.axis, axes, zeros, 0))
            left = 1 / self._flow.sizes[unread]
        lines = {line for line in wanted if line.value == value}
        for line in sorted(lines.union(self._flow.lines.get(value, ()))):
            size, selected = self._flow.sizes[line], self._laid.layouts.is_select(line)
            positions = wanted[line] if line in wanted else np.arange(size)
            if selected or not same(positions, self._laid.layouts.of(line)):
                if line.axis == GRID and not selected:
                    raise PlanError(f"{step.node} would have to rearrange a computed grid")
                edge = self._fetching.read(step.node, line, positions)
                weight = round(edge.channel_bytes * left)
                self._edges.append(replace(edge, channel_bytes=weight))
                left *= len(positions) / max(1, size)


class Burden(NamedTuple):
    """What makes one plan better than another: bytes, then copies, then pieces."""

    copied_bytes: int
    copies: int
    pieces: int


def measured(written: Written) -> Burden:
    """What a draft copies."""
    edges = fetched(written.graph)
    return Burden(
        bytes_copied(edges, concatenated_bytes(written.draft.flow)),
        sum(edge.copied_bytes > 0 for edge in edges),
        sum(len(edge.pieces) for edge in written.graph.edges),
    )


def finished(lowered: Lowered, order: str, best: Written) -> Plan:
    """The plan that a draft makes of a lowered flow."""
    flow = lowered.flow
    read = {value for step in flow.steps for value in step.reads}
    pruned = {layer.name for _, layer in flow.layers}
    kept = by_name(lowered.kept)
    left = sorted(kept.keys() - pruned)
    unreached = {name for name in left if Parameter(name) not in read} | lowered.unreached
    return Plan(
        order=order,
        kept={name: tuple(columns.tolist()) for name, columns in kept.items()},
        graph=_with_turns(flow, best.graph, lowered.renamed),
        weights=WeightChanges(
            cuts={
                name: {axis: tuple(own.tolist()) for axis, own in by_axis.items()}
                for name, by_axis in by_name(best.cuts).items()
            },
            folds=lowered.folds,
            gates=lowered.gates,
        ),
        masks=lowered.masks,
        report=Report(
            stayed=tuple(name for name in left if Parameter(name) in read),
            unreached=tuple(sorted(unreached)),
            frozen=tuple(step.frozen for step in flow.steps if step.frozen),
            order_cost=best.draft.orders.cost,
            lower_bound=best.draft.orders.lower_bound,
            unpruned_concatenated_bytes=concatenated_bytes(flow),
            estimated_us=best.price / 1000,
            zeros=_zeros_left(lowered, best.graph, best.cuts),
            fixed=lowered.fixed,
        ),
    )


def _with_turns(flow: ChannelFlow, graph: GraphChanges, renamed: Mapping[str, str]) -> GraphChanges:
    """The changes with the steps that lowering inserted, each at the node where it runs."""
    turns: dict[str, list[str]] = {step.at: [] for step in flow.steps if step.at is not None}
    inserted = {}
    for step in flow.steps:
        node = step.node if step.at is None else step.at
        if node in turns:
            turns[node].append(step.node)
        if step.at is not None and step.executed:
            weights = [value for value in step.reads if isinstance(value, Parameter)]
            reads = tuple(value for value in step.reads if value not in weights)
            weight = weights[0].name if weights else None
            inserted[step.node] = Inserted(reads, step.makes[0], weight)
    ordered = {node: tuple(names) for node, names in turns.items()}
    return replace(graph, turns=ordered, inserted=inserted, renamed=renamed)


def _zeros_left(lowered: Lowered, graph: GraphChanges, cuts: Cuts) -> dict[str, tuple[int, ...]]:
    """The rows of weights that are zero and are computed all the same."""
    run = {v for step in lowered.flow.steps if step.node not in graph.gone for v in step.reads}
    left = {}
    for weight, by_axis in lowered.masks.zeroed.items():
        for axis, gone in by_axis.items():
            here = cuts.get(Parameter(weight), {}).get(axis)
            rows = np.array(gone) if here is None else np.intersect1d(gone, here)
            if Parameter(weight) in run and len(rows) and weight.endswith("weight"):
                left[weight] = tuple(rows.tolist())
    return left


def concatenated_bytes(flow: ChannelFlow) -> int:
    """Bytes that the unpruned model's own concatenations and channel paddings write."""
    return sum(flow.nbytes[joined.out.value] for _, joined in flow.selects if joined.joined)
