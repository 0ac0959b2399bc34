"""Laying out: where the channels of every tensor lie, and what each step reads of them.

One pass over the steps, in the order they run. A layer's result lies as its stream is ordered; a
sum lies as one of its operands; a layer reads its columns in the order in which they lie. So in
`y = conv1(x); z = conv2(y)`, where the stream of `y` has the order 3 0 5, `conv1` makes rows 3 0 5
and `conv2` has its columns in that order: it reads all of `y`, and nothing moves. A read that is
not of a whole tensor becomes an edge, and what a parameter keeps a cut of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from upscale.channels import Parameter, Positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.lines import GRID, Line
from upscale.flow.liveness import Liveness, Want
from upscale.flow.relations import Absorb, Carry, Fold, Pass, Reduce, Select, Serve
from upscale.planning.layouts import Fetching, Layouts, is_slice, places, rooted, same
from upscale.planning.orders import Ahead, Orders
from upscale.planning.plan import Edge, GraphChanges, Piece, SizesRead
from upscale.targets.target import FetchWork, LayerWork, PassWork, Pricing

# The positions of each line that a step reads, in order; of parameters, those it keeps.
Wanted = dict[Line, Positions]
# What parameters keep along their axes.
Cuts = dict[str, dict[int, Positions]]


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """What a plan is written from: a flow, the columns all layers read, what is live, the orders.

    Sums whose operands lack different channels are put `together` where others read them and
    other sums select from them; else each fetches what it wants from the operands. A `windowed`
    draft reads windows that a selection chose.
    """

    flow: ChannelFlow
    read: Mapping[str, Positions]
    live: Liveness
    wants: tuple[Want, ...]
    orders: Orders
    order: str
    windowed: bool = False
    together: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A draft, what it does to the graph and to parameters, and where it puts everything.

    `price` is what it should take, in nanoseconds, `fetches` what it puts together at run time.
    """

    draft: Draft
    graph: GraphChanges
    cuts: Cuts
    layouts: Layouts
    price: float
    fetches: tuple[FetchWork, ...]


def write(draft: Draft, pricing: Pricing) -> Written:
    """Lay a draft out, and write down what that does to nodes and parameters."""
    writer = _Writer(draft, pricing)
    for step in draft.flow.steps:
        writer.visit(step)
    graph = GraphChanges(
        edges=tuple(writer.edges),
        joins=tuple(writer.joins.values()),
        gone=frozenset(writer.gone),
        constants=frozenset(writer.constants),
        sizes=dict(writer.sizes),
        asked=writer.asked,
        groups=writer.groups,
        widths=writer.widths,
    )
    work = writer.fetching.work
    price = pricing.price(draft.flow, work)
    fetches = tuple(each for each in work if isinstance(each, FetchWork))
    return Written(draft, graph, writer.cuts, writer.layouts, price, fetches)


class _Writer:
    def __init__(self, draft: Draft, pricing: Pricing) -> None:
        self._flow, self._live = draft.flow, draft.live.lines
        self._draft, self._ahead = draft, Ahead(draft.flow, draft.live)
        self.layouts = Layouts(draft.flow)
        in_order = draft.order == "none"
        self.fetching = Fetching(
            draft.flow, draft.live.lines, self.layouts, pricing, in_order=in_order
        )
        self._readers: dict[Line, list[Want]] = defaultdict(list)
        for want in draft.wants:
            self._readers[want.line].append(want)
        self._leader = {line: group[0] for group in draft.flow.tied for line in group[1:]}
        self._agreed: dict[Line, Positions] = {}
        self._forced: dict[Line, Positions] = {}
        self._columns: dict[str, Positions] = {}
        # Layers that read nothing with a computed weight, of which one column of zeros is left.
        self._unread: dict[str, Line] = {}
        self._place: dict[type, Callable[[Any, Step, Wanted], None]] = {
            Pass: self._place_pass,
            Absorb: self._place_absorb,
            Serve: self._place_serve,
            Fold: self._place_fold,
            Carry: self._place_carry,
            Reduce: self._place_reduce,
            Select: self._place_select,
        }
        self.cuts: Cuts = defaultdict(dict)
        self.edges: list[Edge] = []
        self.joins: dict[str, Edge] = {}
        self.asked: dict[str, SizesRead] = {}
        self.sizes: dict[str, dict[int, int]] = defaultdict(dict)
        self.groups: dict[str, int] = {}
        self.widths: dict[str, int] = {}
        self.gone: set[str] = set()
        self.constants: set[str] = set()

    def visit(self, step: Step) -> None:
        """Lay out what a step makes, and write down what happens to it."""
        if step.node not in self._draft.live.steps:
            self.gone.add(step.node)
            return
        layers = [relation for relation in step.relations if isinstance(relation, Reduce)]
        for layer in layers if step.executed else ():
            # A weight used before has its order of columns, which holds within a node too.
            if layer.weight in self._columns:
                self._forced[layer.read] = self._columns[layer.weight]
        wanted: Wanted = {}
        for relation in step.relations:
            self._place[type(relation)](relation, step, wanted)
        if step.shape_only:
            self.asked |= {value: self.fetching.asked(value) for value in step.reads}
        elif step.executed:
            self._fetch(step, wanted)
        elif step.node not in self.joins:
            self.gone.add(step.node)
        for layer in layers if step.executed else ():
            columns, rows = len(self._draft.read[layer.layer]), len(self.layouts.of(layer.out))
            self.fetching.work.append(LayerWork(layer, columns, rows))
        for relation in step.relations if step.executed else ():
            if isinstance(relation, Pass):
                width = len(self.layouts.of(relation.out))
                self.fetching.work.append(PassWork(relation.out, width))
                if step.module:  # one that works on each channel is fitted
                    self.widths[step.node] = width
        for line in step.resize:
            layout, grid = self.layouts.of(line), self._flow.grids.get(line)
            if grid is None:
                self.sizes[step.node][line.axis] = len(layout)
            else:
                self.sizes[step.node] |= zip(grid.spread, grid.left(layout), strict=True)

    def _place_pass(self, relation: Pass, step: Step, wanted: Wanted) -> None:
        layout = self._lay_out(relation.out, partial(self._follow, relation))
        wanted |= dict.fromkeys(relation.reads, layout)

    def _place_absorb(self, relation: Absorb, step: Step, wanted: Wanted) -> None:
        everything = np.arange(self._flow.sizes[relation.read])
        wanted[relation.read] = self.layouts.arrange(relation.read, everything)

    def _place_serve(self, relation: Serve, step: Step, wanted: Wanted) -> None:
        if relation.makes:
            self._lay_out(relation.by, lambda: np.flatnonzero(self._live[relation.by]))
        for line in relation.reads:
            wanted[line] = relation.blocks_read(self._live, self._flow.sizes[line])

    def _place_fold(self, relation: Fold, step: Step, wanted: Wanted) -> None:
        live = np.flatnonzero(self._live[relation.out])
        first = self.layouts.arrange(relation.read, relation.table[live, 0])
        owner = np.empty(self._flow.sizes[relation.read], dtype=np.int64)
        owner[relation.table[:, 0]] = np.arange(len(relation.table))
        wanted[relation.read] = relation.wanted(self._lay_out(relation.out, lambda: owner[first]))

    def _place_carry(self, relation: Carry, step: Step, wanted: Wanted) -> None:
        live = np.flatnonzero(self._live[relation.read])
        channels = self.layouts.arrange(relation.read, live)
        features = relation.features(channels, self._flow.sizes[relation.read])
        self.layouts.put(relation.out, features)
        wanted[relation.read] = channels

    def _place_select(self, relation: Select, step: Step, wanted: Wanted) -> None:
        """What is looked through lies where it is selected from, unless it is built for all."""
        self.layouts.look_through(relation)
        if relation.out.value in self._draft.live.values and self._pays_to_join(relation):
            layout = self.layouts.arrange(relation.out, np.flatnonzero(self._live[relation.out]))
            self.joins[step.node] = self.fetching.edge(step.node, relation.out, layout)
            self.layouts.put(relation.out, layout)

    def _place_reduce(self, relation: Reduce, step: Step, wanted: Wanted) -> None:
        columns = self._draft.read[relation.layer]
        layout = self._lay_out(relation.out, lambda: self._rows(relation, columns))
        contracted = Line(relation.weight, relation.column_axis)
        wanted |= dict.fromkeys(relation.cuts, layout)
        if relation.read in self._flow.blocks and relation.groups == 1:
            # The blocks hold a few channels more than are kept: read them, with zero weights.
            columns = self.layouts.of(relation.read)
        if len(columns) == 0:
            self._read_nothing(relation, step, wanted, contracted)
        elif relation.channelwise:
            self.groups[step.node] = len(layout)
            wanted[relation.read] = layout
        elif relation.groups > 1:
            groups = relation.groups_kept(self._live[relation.out])
            self.groups[step.node] = len(groups)
            wanted[contracted] = columns
            wanted[relation.read] = (groups[:, None] * relation.columns + columns).reshape(-1)
        else:
            if relation.weight not in self._columns:
                self._columns[relation.weight] = self.layouts.arrange(relation.read, columns)
            wanted[contracted] = wanted[relation.read] = self._columns[relation.weight]

    def _read_nothing(self, relation: Reduce, step: Step, wanted: Wanted, contracted: Line) -> None:
        """A layer without columns: it is called with one channel, for the shape alone."""
        self.constants.add(step.node)
        # A module can do without columns; a bare operation keeps one, of zeros.
        if isinstance(relation.weight, Parameter):
            wanted[contracted] = np.arange(0 if step.module else 1)
        else:
            self._unread[step.node] = contracted
        if relation.groups > 1:
            self.groups[step.node] = 1
        line = relation.read
        if line in self._flow.classes:
            wanted[line] = self.layouts.arrange(line, np.flatnonzero(self._live[line]))[:1]
        else:
            wanted[line] = np.arange(1)

    def _pays_to_join(self, relation: Select) -> bool:
        """Whether to build a concatenation once for all its readers, not once for each."""
        readers = self._readers[relation.out]
        if len(relation.reads) < 2:
            return False
        if not all(want.executed for want in readers):
            return self._draft.together and not relation.joined and len(readers) > 1
        if self._draft.order == "none":
            return True
        live = np.flatnonzero(self._live[relation.out])
        layout = self.layouts.arrange(relation.out, live)
        place = places(layout, len(relation.operand))
        apart = sum(len(want.positions) for want in readers)
        joined = len(layout) + sum(
            len(want.positions) for want in readers if not is_slice(np.sort(place[want.positions]))
        )
        return joined < apart

    def _lay_out(self, line: Line, decide: Callable[[], Positions]) -> Positions:
        """Give a line its layout: that of its group where lines must agree, else as decided."""
        leader = line
        while leader in self._leader:
            leader = self._leader[leader]
        layout = self._agreed.get(leader)
        if layout is None:
            layout = self._forced[line] if line in self._forced else decide()
            self._agreed[leader] = layout
        self.layouts.put(line, layout)
        return layout

    def _follow(self, relation: Pass) -> Positions:
        """A result lies as what it is made of, if possible as something computed elsewhere."""
        tracked = [
            line
            for line in relation.reads
            if line not in relation.cuts and line in self._flow.classes
        ]
        if not tracked:
            return self._ranked(relation.out, free=True)
        wanted = np.flatnonzero(self._live[relation.out])
        # What lies in several tensors is copied together anyway, and in any order.
        looked_through = [line for line in tracked if self.layouts.is_select(line)]
        scattered = {line: len(self.layouts.find(line, wanted).roots) for line in looked_through}
        lead = min(tracked, key=lambda line: scattered.get(line, 0))
        layout = self.layouts.arrange(lead, wanted)
        blocks = self._flow.blocks.get(relation.out)
        if blocks:
            block = layout * blocks // self._flow.sizes[relation.out]
            layout = layout[np.argsort(block, kind="stable")]
        return layout

    def _rows(self, relation: Reduce, columns: Positions) -> Positions:
        live = self._live[relation.out]
        if relation.channelwise and len(columns) and relation.read in self._flow.classes:
            return self.layouts.arrange(relation.read, np.flatnonzero(live))
        free = relation.groups == 1 or relation.channelwise
        layout = self._ranked(relation.out, free=free)
        if self._draft.order == "none" or not free or relation.out in self._flow.nested:
            return layout
        return self._ahead.order(relation.out, layout, self.layouts)

    def _ranked(self, line: Line, *, free: bool) -> Positions:
        """The layout of a line that is made here: in the order found for its channels."""
        live, classes = self._live[line], self._flow.classes[line]
        rank = self._draft.orders.places.place
        ranked = free and bool((rank[classes[live]] >= 0).all())
        return rooted(classes, live, rank if ranked else None, nested=line in self._flow.nested)

    def _fetch(self, step: Step, wanted: Wanted) -> None:
        """Make an edge of every read that is not of a whole tensor, and cut parameters."""
        made = {relation.out.value for relation in step.relations if relation.out is not None}
        for line, positions in wanted.items():
            if isinstance(line.value, Parameter):
                self.cuts[line.value][line.axis] = positions
            if line.value in made and not same(positions, self.layouts.of(line)):
                raise PlanError(f"{step.node} would have to rearrange channels within")
        for value in step.reads:
            if not isinstance(value, Parameter):
                self._read(step, value, wanted)

    def _read(self, step: Step, value: str, wanted: Wanted) -> None:
        """An edge for each line of a value that is not read whole; each takes of what is left."""
        left = 1.0
        unread = self._unread.get(step.node)
        if unread is not None and unread.value == value:
            zeros = (Piece(value, 0, 1, zeros=True),)
            axes = len(self._flow.shapes[value])
            self.edges.append(Edge(step.node, value, unread.axis, axes, zeros, 0))
            left = 1 / self._flow.sizes[unread]
        lines = {line for line in wanted if line.value == value}
        for line in sorted(lines.union(self._flow.lines.get(value, ()))):
            size, selected = self._flow.sizes[line], self.layouts.is_select(line)
            positions = wanted[line] if line in wanted else np.arange(size)
            if selected or not same(positions, self.layouts.of(line)):
                if line.axis == GRID and not selected:
                    edge = self._of_grid(step.node, line, positions)
                else:
                    edge = self.fetching.edge(step.node, line, positions)
                weight = round(edge.channel_bytes * left)
                self.edges.append(replace(edge, channel_bytes=weight))
                left *= len(positions) / max(1, size)

    def _of_grid(self, node: str, line: Line, positions: Positions) -> Edge:
        """Whole heads out of a computed grid: they lie along one of its axes."""
        grid, layout = self._flow.grids[line], self.layouts.of(line)
        width = grid.sizes[-1]
        heads = np.unique(positions // width)
        whole = layout[np.isin(layout // width, heads)]
        if len(grid.sizes) != 2 or not same(positions, whole):
            raise PlanError(f"{node} would have to rearrange a computed grid")
        along = Line(line.value, grid.spread[0])
        self.layouts.put(along, np.unique(layout // width))
        return self.fetching.edge(node, along, heads)
