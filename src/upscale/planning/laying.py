"""Laying out: where the channels of every tensor lie, and in which order each step reads them.

One pass over the steps, in the order they run. A layer's result lies as its stream is ordered; a
sum lies as one of its operands; a layer reads its columns in the order in which they lie. So in
`y = conv1(x); z = conv2(y)`, where the stream of `y` has the order 3 0 5, `conv1` makes rows 3 0 5
and `conv2` has its columns in that order: it reads all of `y`, and nothing moves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial, singledispatchmethod

import numpy as np

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.liveness import Liveness, Want
from upscale.flow.relations import GRID, Absorb, Carry, Fold, Line, Pass, Reduce, Relation, Select
from upscale.names import Parameter
from upscale.planning.layouts import Found, Layouts, is_slice, places, rooted
from upscale.planning.orders import Orders


class Ahead:
    """Knows who reads each line, and what its channels are added to."""

    def __init__(self, flow: ChannelFlow, live: Liveness) -> None:
        self._flow, self._live = flow, live
        self._readers: dict[Line, list[Relation | None]] = defaultdict(list)
        self._parts = {part.out: part for _, part in flow.selects if len(part.reads) == 1}
        for step in flow.steps:
            if step.node not in live.steps or step.shape_only:
                continue
            read = set()
            for relation in step.relations:
                for line in relation.reads:
                    self._readers[line].append(relation)
                    read.add(line)
            for value in step.reads if step.executed else ():
                for line in set(flow.lines.get(value, ())) - read:
                    self._readers[line].append(None)

    def order(self, line: Line, layout: Positions, layouts: Layouts) -> Positions:
        """A layout for a line, or the same channels in the order of what they are added to.

        A sum that was split adds a part of the line; then what is added comes first.
        """
        size = self._flow.sizes[line]
        origin = np.arange(size)
        while (relation := self._reader(line)) is not None:
            followed = relation.followed(origin)
            if followed is None or relation.out is None:
                return layout
            others = self._others(relation, line)
            wanted = np.flatnonzero(self._live.lines[relation.out])
            for other in others:
                met = self._met(other, wanted, layouts)
                if met is not None:
                    return _first(origin[met], layout, size)
            if others:
                return layout
            line, origin = relation.out, followed
        return layout

    def _reader(self, line: Line) -> Relation | None:
        """What reads a line, if that is one thing."""
        readers = self._readers[line]
        if line.axis == GRID or line in self._flow.blocks:
            return None
        if len(readers) == 2:
            # A split sum reads what is added, and then the rest.
            readers = [each for each in readers if each is not None and each.out in self._parts]
        return readers[0] if len(readers) == 1 else None

    def _others(self, relation: Relation, line: Line) -> list[Line]:
        """The other tensors whose channels meet those of a line."""
        return [
            read
            for read in relation.reads
            if read != line and read in self._flow.classes and not isinstance(read.value, Parameter)
        ]

    def _met(self, line: Line, wanted: Positions, layouts: Layouts) -> Positions | None:
        """Wanted positions in the order in which they lie, if that is known yet.

        What the model itself puts together can be put together in any order.
        """
        there = wanted
        while not layouts.knows(line):
            if line not in self._parts:
                return None
            part = self._parts[line]
            nothing = (there < 0) | (part.operand[there] < 0)
            there = np.where(nothing, -1, part.position[there])
            (line,) = part.reads
        if layouts.joins(line):
            return None
        if there is wanted:
            return layouts.arrange(line, wanted)
        held = there >= 0
        arranged = layouts.arrange(line, np.unique(there[held]))
        place = np.full(len(there), len(arranged))
        place[held] = places(arranged, self._flow.sizes[line])[there[held]]
        return wanted[np.argsort(place, kind="stable")]


def _first(channels: Positions, layout: Positions, size: int) -> Positions:
    """A layout with the given channels first, as far as it has them; each once."""
    held = np.zeros(size + 1, dtype=bool)  # one more for -1, which is no channel
    held[layout] = True
    first = channels[held[channels]]
    held[first] = False
    rest = layout[held[layout]]
    # A channel that comes twice would be counted twice.
    return np.concatenate((first, rest)) if len(first) + len(rest) == len(layout) else layout


# The positions of each line that a step reads, in order; of parameters, those it keeps.
Wanted = dict[Line, Positions]


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
class Join:
    """A selection that is built once for all its readers: where its parts were found.

    Its `anchor` has its value's shape, but for the line itself. It is `joined` if the unpruned
    model copies the parts together too.
    """

    line: Line
    layout: Positions
    found: Found
    anchor: Line
    joined: bool


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """Where a draft puts everything: layouts, what steps want of each line, and what is joined.

    `groups` are new numbers of groups, `constants` the steps that read nothing and give their
    bias; of those, `unread` have a computed weight of which one column of zeros is left.
    """

    layouts: Layouts
    wanted: dict[str, Wanted] = field(default_factory=dict)
    joins: dict[str, Join] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    unread: dict[str, Line] = field(default_factory=dict)


def lay_out(draft: Draft) -> Laid:
    """Give every line its layout, and every step the order in which it reads."""
    laying = _Laying(draft)
    for step in draft.flow.steps:
        if step.node in draft.live.steps:
            laying.visit(step)
    return laying.laid


class _Laying:
    def __init__(self, draft: Draft) -> None:
        self._flow, self._live = draft.flow, draft.live.lines
        self._draft, self._ahead = draft, Ahead(draft.flow, draft.live)
        self.laid = Laid(Layouts(draft.flow))
        self._layouts = self.laid.layouts
        self._readers: dict[Line, list[Want]] = defaultdict(list)
        for want in draft.wants:
            self._readers[want.line].append(want)
        self._layers: dict[str, list[Reduce]] = defaultdict(list)
        for step, layer in draft.flow.layers:
            self._layers[step.node].append(layer)
        self._leader = {line: group[0] for group in draft.flow.tied for line in group[1:]}
        self._agreed: dict[Line, Positions] = {}
        self._forced: dict[Line, Positions] = {}
        self._columns: dict[str, Positions] = {}

    def visit(self, step: Step) -> None:
        """Lay out what a step makes; what is looked through lies where it is selected from."""
        for layer in self._layers[step.node] if step.executed else ():
            # A weight used before has its order of columns, which holds within a node too.
            if layer.weight in self._columns:
                self._forced[layer.read] = self._columns[layer.weight]
        wanted: Wanted = {}
        for relation in step.relations:
            self._place(relation, step, wanted)
        self.laid.wanted[step.node] = wanted

    @singledispatchmethod
    def _place(self, relation: object, step: Step, wanted: Wanted) -> None:
        """Lay out a relation's result, and say what it wants of the lines it reads."""
        raise TypeError(f"{type(relation).__name__} is no relation")

    @_place.register
    def _place_pass(self, relation: Pass, step: Step, wanted: Wanted) -> None:
        layout = self._lay_out(relation.out, partial(self._follow, relation))
        wanted |= dict.fromkeys(relation.reads, layout)

    @_place.register
    def _place_absorb(self, relation: Absorb, step: Step, wanted: Wanted) -> None:
        everything = np.arange(self._flow.sizes[relation.read])
        wanted[relation.read] = self._layouts.arrange(relation.read, everything)

    @_place.register
    def _place_fold(self, relation: Fold, step: Step, wanted: Wanted) -> None:
        live = np.flatnonzero(self._live[relation.out])
        first = self._layouts.arrange(relation.read, relation.table[live, 0])
        owner = np.empty(self._flow.sizes[relation.read], dtype=np.int64)
        owner[relation.table[:, 0]] = np.arange(len(relation.table))
        wanted[relation.read] = relation.wanted(self._lay_out(relation.out, lambda: owner[first]))

    @_place.register
    def _place_carry(self, relation: Carry, step: Step, wanted: Wanted) -> None:
        live = np.flatnonzero(self._live[relation.read])
        channels = self._layouts.arrange(relation.read, live)
        features = relation.features(channels, self._flow.sizes[relation.read])
        self._layouts.put(relation.out, features)
        wanted[relation.read] = channels

    @_place.register
    def _place_select(self, relation: Select, step: Step, wanted: Wanted) -> None:
        self._layouts.look_through(relation)
        if relation.out.value in self._draft.live.values and self._pays_to_join(relation):
            line, layouts = relation.out, self._layouts
            layout = layouts.arrange(line, np.flatnonzero(self._live[line]))
            found, anchor = layouts.find(line, layout), layouts.anchor(line, self._live)
            join = Join(line, layout, found, anchor, layouts.joins(line))
            self.laid.joins[step.node] = join
            layouts.put(line, layout)

    @_place.register
    def _place_reduce(self, relation: Reduce, step: Step, wanted: Wanted) -> None:
        columns = self._draft.read[relation.layer]
        layout = self._lay_out(relation.out, lambda: self._rows(relation, columns))
        contracted = Line(relation.weight, relation.column_axis)
        wanted |= dict.fromkeys(relation.cuts, layout)
        if relation.read in self._flow.blocks and relation.groups == 1:
            # The blocks hold a few channels more than are kept: read them, with zero weights.
            columns = self._layouts.of(relation.read)
        if len(columns) == 0:
            self._read_nothing(relation, step, wanted, contracted)
        elif relation.channelwise:
            self.laid.groups[step.node] = len(layout)
            wanted[relation.read] = layout
        elif relation.groups > 1:
            groups = relation.groups_kept(self._live[relation.out])
            self.laid.groups[step.node] = len(groups)
            wanted[contracted] = columns
            wanted[relation.read] = (groups[:, None] * relation.columns + columns).reshape(-1)
        else:
            if relation.weight not in self._columns:
                self._columns[relation.weight] = self._layouts.arrange(relation.read, columns)
            wanted[contracted] = wanted[relation.read] = self._columns[relation.weight]

    def _read_nothing(self, relation: Reduce, step: Step, wanted: Wanted, contracted: Line) -> None:
        """A layer without columns: it is called with one channel, for the shape alone."""
        self.laid.constants.add(step.node)
        # A module can do without columns; a bare operation keeps one, of zeros.
        if isinstance(relation.weight, Parameter):
            wanted[contracted] = np.arange(0 if step.module else 1)
        else:
            self.laid.unread[step.node] = contracted
        if relation.groups > 1:
            self.laid.groups[step.node] = 1
        line = relation.read
        if line in self._flow.classes:
            wanted[line] = self._layouts.arrange(line, np.flatnonzero(self._live[line]))[:1]
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
        layout = self._layouts.arrange(relation.out, live)
        place = np.full(len(relation.operand), -1)
        place[layout] = np.arange(len(layout))
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
        self._layouts.put(line, layout)
        return layout

    def _follow(self, relation: Pass) -> Positions:
        """A result lies as what it is made of, if possible as something computed elsewhere."""
        tensors = [line for line in relation.reads if line not in relation.cuts]
        tracked = [line for line in tensors if line in self._flow.classes]
        if not tracked:
            return self._ranked(relation.out, free=True)
        wanted = np.flatnonzero(self._live[relation.out])
        # What lies in several tensors is copied together anyway, and in any order.
        lead = min(tracked, key=lambda line: self._scattered(line, wanted))
        layout = self._layouts.arrange(lead, wanted)
        blocks = self._flow.blocks.get(relation.out)
        if blocks:
            block = layout * blocks // self._flow.sizes[relation.out]
            layout = layout[np.argsort(block, kind="stable")]
        return layout

    def _scattered(self, line: Line, wanted: Positions) -> int:
        """Over how many tensors wanted positions of a line lie; none, if it is one itself."""
        if not self._layouts.is_select(line):
            return 0
        return len(self._layouts.find(line, wanted).roots)

    def _rows(self, relation: Reduce, columns: Positions) -> Positions:
        live = self._live[relation.out]
        if relation.channelwise and len(columns) and relation.read in self._flow.classes:
            return self._layouts.arrange(relation.read, np.flatnonzero(live))
        free = relation.groups == 1 or relation.channelwise
        layout = self._ranked(relation.out, free=free)
        if self._draft.order == "none" or not free or relation.out in self._flow.nested:
            return layout
        return self._ahead.order(relation.out, layout, self._layouts)

    def _ranked(self, line: Line, *, free: bool) -> Positions:
        """The layout of a line that is made here: in the order found for its channels."""
        live, classes = self._live[line], self._flow.classes[line]
        rank = self._draft.orders.places.place
        ranked = free and bool((rank[classes[live]] >= 0).all())
        return rooted(classes, live, rank if ranked else None, nested=line in self._flow.nested)
