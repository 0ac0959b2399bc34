"""Writing a plan: what is needed and how it is ordered become layouts, cuts and edges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from upscale.channels import Positions, is_slice, runs
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.liveness import Liveness, tied_lines
from upscale.flow.reads import Want
from upscale.flow.relations import GRID, Absorb, Carry, Fold, Grid, Line, Pass, Reduce, Select
from upscale.planning.align import Ahead
from upscale.planning.layouts import Found, Layouts, rooted
from upscale.planning.orders import Orders
from upscale.planning.plan import Edge, Piece, Plan, SizesRead, Spread
from upscale.planning.pricing import Part, Pricing, Rates

# Beyond so many stretches of zeros between a value's channels both are gathered.
MOST_ZEROS = 8


class Planner:
    """Writes a plan: one pass over the steps, with what each needs laid out and fetched.

    Sums whose operands lack different channels are put `together` where others read them and
    other sums select from them; else each fetches what it wants from the operands.
    """

    def __init__(
        self,
        flow: ChannelFlow,
        live: Liveness,
        kept: Mapping[str, Positions],
        wants: tuple[Want, ...],
        orders: Orders,
        order: str,
        pricing: Pricing,
        *,
        together: bool = False,
    ) -> None:
        self._flow, self._live, self._kept, self._order = flow, live, kept, order
        self._orders, self._pricing, self._together = orders, pricing, together
        self.layouts, self._ahead = Layouts(flow), Ahead(flow, live)
        self.price = 0.0
        self._readers: dict[Line, list[Want]] = defaultdict(list)
        for want in wants:
            self._readers[want.line].append(want)
        self._nested = {
            relation.read
            for step in flow.steps
            for relation in step.relations
            if isinstance(relation, Fold) and relation.nested
        }
        self._leader = {line: group[0] for group in tied_lines(flow) for line in group[1:]}
        self._rates: dict[Line, Rates] = {}
        self._left: dict[str, float] = {}
        self._agreed: dict[Line, Positions] = {}
        self._forced: dict[Line, Positions] = {}
        self._columns: dict[str, Positions] = {}
        self._edges: list[Edge] = []
        self._joins: list[Edge] = []
        self._asked: dict[str, SizesRead] = {}
        self._cuts: dict[str, dict[int, Positions]] = defaultdict(dict)
        self._sizes: dict[str, dict[int, int]] = defaultdict(dict)
        self._groups: dict[str, int] = {}
        self._widths: dict[str, int] = {}
        self._constants: set[str] = set()
        self._pruned: set[str] = set()
        self._gone: set[str] = set()

    def plan(self) -> Plan:
        """The plan; what it costs is then in `price`, in nanoseconds, and where all lies in
        `layouts`."""
        for step in self._flow.steps:
            self._pruned |= {r.layer for r in step.relations if isinstance(r, Reduce)}
            if step.node not in self._live.steps:
                self._gone.add(step.node)
            elif step.executed:
                self._execute(step)
            else:
                self._look_through(step)
        cuts = {
            name[1:]: {axis: tuple(indices.tolist()) for axis, indices in by_axis.items()}
            for name, by_axis in self._cuts.items()
        }
        read = {value for step in self._flow.steps for value in step.reads}
        left = sorted(self._kept.keys() - self._pruned)
        return Plan(
            order=self._order,
            kept={name[1:]: tuple(columns.tolist()) for name, columns in self._kept.items()},
            edges=tuple(self._edges),
            joins=tuple(self._joins),
            cuts=cuts,
            sizes=dict(self._sizes),
            asked=self._asked,
            groups=self._groups,
            widths=self._widths,
            constants=frozenset(self._constants),
            stayed=tuple(name[1:] for name in left if name in read),
            unreached=tuple(name[1:] for name in left if name not in read),
            gone=frozenset(self._gone),
            frozen=tuple(step.frozen for step in self._flow.steps if step.frozen),
            order_cost=self._orders.cost,
            lower_bound=self._orders.lower_bound,
            unpruned_concatenated_bytes=_concatenated_bytes(self._flow),
        )

    def _look_through(self, step: Step) -> None:
        self._gone.add(step.node)
        for relation in step.relations:
            if isinstance(relation, Select):
                self.layouts.look_through(relation)
                if relation.out.value in self._live.values and self._pays_to_join(relation):
                    self._join(step.node, relation.out)

    def _pays_to_join(self, relation: Select) -> bool:
        """Whether to build a concatenation once for all its readers, not once for each."""
        readers = self._readers[relation.out]
        if len(relation.reads) < 2:
            return False
        if not all(want.executed for want in readers):
            return self._together and not relation.joined and len(readers) > 1
        if self._order == "none":
            return True
        layout = self.layouts.arrange(relation.out, np.flatnonzero(self._live.lines[relation.out]))
        place = np.full(len(relation.operand), -1)
        place[layout] = np.arange(len(layout))
        apart = sum(len(want.positions) for want in readers)
        joined = len(layout) + sum(
            len(want.positions) for want in readers if not is_slice(np.sort(place[want.positions]))
        )
        return joined < apart

    def _join(self, node: str, line: Line) -> None:
        wanted = self.layouts.arrange(line, np.flatnonzero(self._live.lines[line]))
        self._gone.discard(node)
        self._joins.append(self._edge(node, line, wanted))
        self.layouts.put(line, wanted)

    def _execute(self, step: Step) -> None:
        wanted: dict[Line, Positions] = {}
        for relation in step.relations:
            # A weight used before has its order of columns, which holds within a node too.
            if isinstance(relation, Reduce) and relation.weight in self._columns:
                self._forced[relation.read] = self._columns[relation.weight]
        for relation in step.relations:
            if isinstance(relation, Pass):
                layout = self._lay_out(relation.out, partial(self._follow, relation))
                wanted |= dict.fromkeys(relation.reads, layout)
            elif isinstance(relation, Absorb):
                everything = np.arange(self._flow.sizes[relation.read])
                wanted[relation.read] = self.layouts.arrange(relation.read, everything)
            elif isinstance(relation, Fold):
                wanted[relation.read] = relation.wanted(self._fold(relation))
            elif isinstance(relation, Carry):
                wanted[relation.read] = self._carry(relation)
            elif isinstance(relation, Reduce):
                self._reduce(step, relation, wanted)
        if step.shape_only:
            self._ask(step)
        else:
            self._fetch(step, wanted)
        for relation in step.relations:
            if isinstance(relation, Pass):
                width = len(self.layouts.of(relation.out))
                self.price += self._pricing.passing(self._flow, relation.out, width)
                if step.module:
                    self._widths[step.node] = width
        for line in step.resize:
            self._sizes[step.node][line.axis] = len(self.layouts.of(line))

    def _follow(self, relation: Pass) -> Positions:
        """A result lies as what it is made of, if possible as something computed elsewhere."""
        tensors = [line for line in relation.reads if not line.value.startswith("@")]
        tracked = [line for line in tensors if line in self._flow.classes]
        if not tracked:
            return self._ranked(relation.out, free=True)
        wanted = np.flatnonzero(self._live.lines[relation.out])
        # What lies in several tensors is copied together anyway, and in any order.
        lead = min(tracked, key=lambda line: self._scattered(line, wanted))
        layout = self.layouts.arrange(lead, wanted)
        blocks = self._flow.blocks.get(relation.out)
        if blocks:
            block = layout * blocks // self._flow.sizes[relation.out]
            layout = layout[np.argsort(block, kind="stable")]
        return layout

    def _scattered(self, line: Line, wanted: Positions) -> int:
        """Over how many tensors wanted positions of a line lie; none, if it is one itself."""
        if not self.layouts.is_select(line):
            return 0
        return len(self.layouts.find(line, wanted).roots)

    def _fold(self, relation: Fold) -> Positions:
        live = np.flatnonzero(self._live.lines[relation.out])
        first = self.layouts.arrange(relation.read, relation.table[live, 0])
        owner = np.empty(self._flow.sizes[relation.read], dtype=np.int64)
        owner[relation.table[:, 0]] = np.arange(len(relation.table))
        return self._lay_out(relation.out, lambda: owner[first])

    def _carry(self, relation: Carry) -> Positions:
        live = np.flatnonzero(self._live.lines[relation.read])
        channels = self.layouts.arrange(relation.read, live)
        self.layouts.put(relation.out, relation.features(channels, self._flow.sizes[relation.read]))
        return channels

    def _reduce(self, step: Step, relation: Reduce, wanted: dict[Line, Positions]) -> None:
        columns = relation.columns_kept(self._kept)
        layout = self._lay_out(relation.out, lambda: self._rows(relation, columns))
        self.price += self._pricing.layer(self._flow, relation, len(columns), len(layout))
        read, rows = relation.read, Line(relation.weight, relation.row_axis)
        contracted = Line(relation.weight, relation.column_axis)
        wanted |= dict.fromkeys((rows, *relation.beside), layout)
        if read in self._flow.blocks and relation.groups == 1:
            # The blocks hold a few channels more than are kept: read them, with zero weights.
            columns = self.layouts.of(read)
        if len(columns) == 0:
            self._constants.add(step.node)
            # A module can do without columns; a bare operation keeps one, of zeros.
            if relation.weight.startswith("@"):
                wanted[contracted] = np.arange(0 if step.module else 1)
            else:
                zeros = (Piece(relation.weight, 0, 1, zeros=True),)
                edge = Edge(step.node, relation.weight, relation.column_axis, zeros, 0)
                self._edges.append(edge)
                self._left[relation.weight] = 1 / relation.columns
            if relation.groups > 1:
                self._groups[step.node] = 1
            wanted[read] = self._witness(read)
        elif relation.channelwise:
            self._groups[step.node] = len(layout)
            wanted[read] = layout
        elif relation.groups > 1:
            groups = relation.groups_kept(self._live.lines[relation.out])
            self._groups[step.node] = len(groups)
            wanted[contracted] = columns
            wanted[read] = (groups[:, None] * relation.columns + columns).reshape(-1)
        else:
            if relation.weight not in self._columns:
                self._columns[relation.weight] = self.layouts.arrange(read, columns)
            wanted[contracted] = wanted[read] = self._columns[relation.weight]

    def _rows(self, relation: Reduce, columns: Positions) -> Positions:
        live = self._live.lines[relation.out]
        if relation.channelwise and len(columns) and relation.read in self._flow.classes:
            return self.layouts.arrange(relation.read, np.flatnonzero(live))
        free = relation.groups == 1 or relation.channelwise
        layout = self._ranked(relation.out, free=free)
        if self._order == "none" or not free or relation.out in self._nested:
            return layout
        return self._ahead.order(relation.out, layout, self.layouts)

    def _ranked(self, line: Line, *, free: bool) -> Positions:
        """The layout of a line that is made here: in the order found for its channels."""
        live, classes = self._live.lines[line], self._flow.classes[line]
        rank = self._orders.places.place
        ranked = free and bool((rank[classes[live]] >= 0).all())
        return rooted(classes, live, rank if ranked else None, nested=line in self._nested)

    def _witness(self, line: Line) -> Positions:
        """One position of a value that is read for its shape alone."""
        if line not in self._flow.classes:
            return np.arange(1)
        return self.layouts.arrange(line, np.flatnonzero(self._live.lines[line]))[:1]

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

    def _fetch(self, step: Step, wanted: dict[Line, Positions]) -> None:
        """Make an edge of every read that is not of a whole tensor, and cut parameters."""
        made = {relation.out.value for relation in step.relations if relation.out is not None}
        for line, positions in wanted.items():
            if line.value.startswith("@"):
                self._cuts[line.value][line.axis] = positions
        for value in step.reads:
            lines = {line for line in wanted if line.value == value} | set(
                self._flow.lines.get(value, ())
            )
            left = self._left.pop(value, 1.0)
            for line in sorted(lines - {line for line in lines if value.startswith("@")}):
                positions = wanted.get(line, np.arange(self._flow.sizes[line]))
                select = self.layouts.is_select(line)
                if select or not np.array_equal(positions, self.layouts.of(line)):
                    if line.axis == GRID and not select:
                        raise PlanError(f"{step.node} would have to rearrange a computed grid")
                    edge = self._edge(step.node, line, positions)
                    weight = round(edge.channel_bytes * left)
                    self._edges.append(replace(edge, channel_bytes=weight))
                    left *= len(positions) / max(1, self._flow.sizes[line])
        for line, positions in wanted.items():
            if line.value in made and not np.array_equal(positions, self.layouts.of(line)):
                raise PlanError(f"{step.node} would have to rearrange channels within")

    def _edge(self, node: str, line: Line, wanted: Positions) -> Edge:
        found = self.layouts.find(line, wanted)
        joined = self.layouts.joins(line)
        pieces = self._put_together(line, found, joined=joined)
        weight = self._flow.nbytes[line.value] // max(1, self._flow.sizes[line])
        axis, spread = line.axis, None
        if line.axis == GRID:
            axis = next((r.axis for r in found.roots if r is not None), self._anchor(line).axis)
            spread = _spread(self._flow.grids[line], axis, len(wanted))
        return Edge(node, line.value, axis, tuple(pieces), weight, spread, joined)

    def _put_together(self, line: Line, found: Found, *, joined: bool) -> list[Piece]:
        """The pieces of what was found, in order; of nothing, one that holds no channel."""
        if not len(found.root):
            return [Piece(self._anchor(line).value, 0, 0)]
        breaks = np.flatnonzero(np.diff(found.root)) + 1
        filled = [root for root in found.roots if root is not None]
        most = 1 if self._order == "none" else MOST_ZEROS
        if not joined and len(filled) == 1 < len(found.roots) and len(breaks) > most:
            mine = found.root == found.roots.index(filled[0])
            places = np.full(len(mine), -1)
            places[mine] = self.layouts.place(filled[0], found.position[mine])
            only = self._part(filled[0], len(places), len(breaks))
            self.price += self._pricing.fetch([only], joined=False)
            return [self._gathered(filled[0], places)]
        pieces: list[Piece] = []
        parts: list[Part] = []
        for part in np.split(np.arange(len(found.root)), breaks):
            root = found.roots[int(found.root[part[0]])]
            if root is None:
                pieces.append(Piece(self._anchor(line).value, 0, len(part), zeros=True))
            else:
                places = self.layouts.place(root, found.position[part])
                pieces += self._pieces(root, places, joined=joined)
                parts.append(self._part(root, len(places), len(runs(places))))
        if parts:
            self.price += self._pricing.fetch(parts, joined=joined)
        return pieces

    def _part(self, root: Line, channels: int, stretches: int) -> Part:
        if root not in self._rates:
            self._rates[root] = self._pricing.rates(self._flow, root)
        whole = channels == len(self.layouts.of(root))
        return Part(self._rates[root], channels, stretches, whole)

    def _gathered(self, root: Line, places: Positions) -> Piece:
        by_rows = self._order != "none" and self._pricing.gathers_rows(self._flow, root)
        return Piece(root.value, 0, len(places), tuple(places.tolist()), rows=by_rows)

    def _ask(self, step: Step) -> None:
        for value in step.reads:
            shape, lines = self._flow.shapes[value], self._flow.lines.get(value, ())
            grid = self._flow.grids.get(lines[0]) if lines else None
            axes = grid.axes if grid else tuple(range(len(shape)))
            fixed = {axis: shape[axis] for axis, flat in enumerate(axes) if flat is None}
            fixed |= {line.axis: shape[line.axis] for line in lines if line.axis != GRID}
            anchor = self._anchor(lines[0]).value if lines else value
            if grid and anchor == value:
                axes = tuple(range(len(shape)))
            self._asked[value] = SizesRead(anchor, axes, fixed)

    def _anchor(self, line: Line) -> Line:
        """A line of a tensor that has the shape of this one's value, but for the line itself."""
        if not self.layouts.is_select(line):
            return line
        found = self.layouts.find(line, np.flatnonzero(self._live.lines[line]))
        roots = [root for root in found.roots if root is not None]
        return roots[0] if roots else self._anchor(self.layouts.select(line).reads[0])

    def _pieces(self, root: Line, places: Positions, *, joined: bool) -> list[Piece]:
        stretches, size = runs(places), len(self.layouts.of(root))
        if self._order == "none":
            gathers = len(stretches) > 1
        else:
            part = self._part(root, len(places), len(stretches))
            gathers = self._pricing.pays_to_gather(part, joined=joined)
        if gathers:
            return [self._gathered(root, places)]
        return [
            Piece(root.value, start, length, whole=length == size) for start, length in stretches
        ]


def _spread(grid: Grid, axis: int, channels: int) -> Spread:
    """How to spread fetched channels, which lie along an axis, over a grid."""
    count = len(grid.sizes)
    spread = iter(range(axis, axis + count))
    order = tuple(
        next(spread) if flat is None else flat + (count - 1) * (flat > axis) for flat in grid.axes
    )
    last = channels // grid.blocks if grid.blocks else grid.sizes[-1]
    return Spread((*grid.sizes[:-1], last), order)


def _concatenated_bytes(flow: ChannelFlow) -> int:
    """Bytes that the unpruned model's own concatenations and channel paddings write."""
    return sum(
        flow.nbytes[relation.out.value]
        for step in flow.steps
        for relation in step.relations
        if isinstance(relation, Select)
        if relation.joined
    )
