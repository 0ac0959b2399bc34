"""Orders: every read is a set of channels that wants to be contiguous; streams are ordered for it.

A stream is the classes that one layer computes together: they have one order. Say two layers
read a stream of four channels, one {0, 2} and the other {2, 3}: the order 0 2 3 1 lets both read
slices. The solver finds it; here the sets are collected and weighed by what a copy would write.

A line that is added to another may have that one's order instead: `Ahead` looks for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from upscale.channels import Parameter, Places, Positions, positions
from upscale.flow.channel_flow import ChannelFlow, Classes
from upscale.flow.lines import GRID, Line
from upscale.flow.liveness import Liveness, Want
from upscale.flow.relations import Relation
from upscale.ordering import Ordering, solve
from upscale.planning.layouts import Layouts, places

# A run more in a concatenation that copies anyway is nearly free next to a copy of its own.
CONCATENATED = 1e-6
# The longest that a search for one stream's order may take: where a copy is at stake, and where
# the runs are concatenated anyway.
SECONDS, SECONDS_IF_CONCATENATED = 1.0, 0.01


# A set of classes that want to be contiguous, the bytes a copy writes for each, and whether they
# are concatenated with others anyway.
Weighed = tuple[Positions, float, bool]


@dataclass(frozen=True, slots=True)
class Orders:
    """Stream and place of every class whose order is free, the bytes of reads that the orders
    leave apart, and the bytes that any would."""

    places: Places
    cost: float = 0.0
    lower_bound: float = 0.0


# What is solved of a family: its sets as bytes, by places in their stream, their weights, and the
# seconds it was given; a draft that cuts streams elsewhere asks for most of them again.
Solved = dict[tuple[tuple[bytes, ...], tuple[float, ...], float], Ordering]


def order_classes(
    flow: ChannelFlow,
    live: Liveness,
    wants: Sequence[Want],
    order: str,
    sets: Iterable[Weighed] | None = None,
    solved: Solved | None = None,
) -> Orders:
    """Order every class of channels whose order is free.

    Classes that one layer computes are ordered together. Where one of them stands in a tensor
    whose order is given, all stay in their own. `sets` replaces what the wants ask for; what is
    `solved` already is not solved again.
    """
    found, solved = Places.none(flow.class_count), {} if solved is None else solved
    if order == "none":
        return Orders(found)
    stream_of = find_streams(flow, live)
    # All classes, stream by stream, and where each stands there.
    grouped = np.argsort(stream_of, kind="stable")
    start = np.searchsorted(stream_of[grouped], np.arange(len(grouped)))
    rank = np.empty_like(grouped)
    rank[grouped] = np.arange(len(grouped)) - start[stream_of[grouped]]
    sets_of: dict[int, dict[bytes, float]] = defaultdict(lambda: defaultdict(float))
    costly: set[int] = set()
    for channels, weight, joined in _weighed(flow, live, wants) if sets is None else sets:
        if not len(channels):
            continue
        own = stream_of[channels]
        together = _distinct(own)
        if joined or len(together) > 1:
            weight *= CONCATENATED
        elif weight:
            costly.update(together)
        for stream in together:
            members = channels if len(together) == 1 else channels[own == stream]
            sets_of[stream][_ascending(rank[members]).tobytes()] += weight * len(members)
    cost = bound = 0.0
    for stream in sorted(sets_of.keys() - fixed_streams(flow, stream_of, wants)):
        seconds = SECONDS if stream in costly else SECONDS_IF_CONCATENATED
        family = (tuple(sets_of[stream]), tuple(sets_of[stream].values()), seconds)
        if family not in solved:
            members = [np.frombuffer(each, dtype=np.int64) for each in family[0]]
            solved[family] = solve(members, family[1], method=order, time_limit=seconds)
        channels = grouped[start[stream] + positions(solved[family].order)]
        found.stream[channels], found.place[channels] = stream, np.arange(len(channels))
        cost, bound = cost + solved[family].cost, bound + solved[family].lower_bound
    return Orders(found, cost, bound)


def _distinct(numbers: Positions) -> list[int]:
    """The different numbers, ascending; in most arrays it is one."""
    if (numbers == numbers[0]).all():
        return [int(numbers[0])]
    return sorted(set(numbers.tolist()))


def _ascending(numbers: Positions) -> Positions:
    """The different numbers, ascending; in most arrays they are so already."""
    return numbers if (numbers[1:] > numbers[:-1]).all() else np.unique(numbers)


def windows_read(
    flow: ChannelFlow, live: Liveness, read: Mapping[str, Positions]
) -> Iterator[Weighed]:
    """What each layer reads, as sets that want to be contiguous, all alike."""
    for step, relation in flow.layers:
        if step.node in live.steps and not relation.channelwise:
            wanted, _ = relation.wants(0, live.lines, read)
            yield _channels(flow, relation.read, wanted), 1.0, False
    # What no layer reads here may still be needed, behind a cut.
    for line in _computed_lines(flow):
        yield flow.classes[line][live.lines[line]], 0.0, False


def fixed_streams(flow: ChannelFlow, stream_of: Positions, wants: Sequence[Want]) -> set[int]:
    """The streams whose order is given."""
    given = [*_fixed(flow, wants), np.empty(0, dtype=np.int64)]
    return set(stream_of[np.concatenate(given)].tolist())


def find_streams(flow: ChannelFlow, live: Liveness) -> Positions:
    """The stream of each class: classes that one layer computes have one order."""
    streams = Classes()
    classes = streams.fresh(flow.class_count)
    for line in _computed_lines(flow):
        own = flow.classes[line][live.lines[line]]
        streams.merge(own[1:], np.repeat(own[:1], max(0, len(own) - 1)))
    return streams.find(classes)


def _weighed(flow: ChannelFlow, live: Liveness, wants: Sequence[Want]) -> Iterator[Weighed]:
    """The sets that want to be contiguous, by what their copies would write."""
    seen_through = Layouts(flow)
    for _, relation in flow.selects:
        seen_through.look_through(relation)
    anew = frozenset(_put_together(flow, seen_through))
    for want in wants:
        if not want.executed or not len(want.positions):
            continue
        found = seen_through.find(want.line, want.positions)
        weight = flow.nbytes[want.line.value] / max(1, flow.sizes[want.line])
        alive = live.lines.get(want.line)
        whole = alive is not None and len(want.positions) == np.count_nonzero(alive)
        if found.roots == (want.line,) and whole:
            weight = 0.0  # the whole tensor is read, in whatever order it is
        for number, root in enumerate(found.roots):
            mine = found.position[found.root == number]
            yield _channels(flow, root, mine), weight, len(found.roots) > 1 or root in anew


def _put_together(flow: ChannelFlow, seen_through: Layouts) -> Iterator[Line]:
    """Lines that lie as the tensors lie which a sum of parts was put together from: no order of
    channels makes a part of them contiguous."""
    for step, relation in flow.passes:
        tracked = [line for line in relation.reads if line in flow.classes]
        if step.executed and len(tracked) == 1 and not seen_through.joins(tracked[0]):
            found = seen_through.find(tracked[0], np.arange(flow.sizes[tracked[0]]))
            if len(found.roots) > 1:
                yield relation.out


def _channels(flow: ChannelFlow, line: Line | None, positions: Positions) -> Positions:
    """The classes of channels at positions of a line; features count as their channels."""
    if line is None or line not in flow.classes:
        return np.empty(0, dtype=np.int64)
    classes = flow.classes[line][positions]
    if not flow.carried:
        return classes
    return np.array([flow.carried.get(c, c) for c in classes.tolist()], dtype=np.int64)


def _computed_lines(flow: ChannelFlow) -> Iterator[Line]:
    """Lines whose order is a layer's to choose."""
    return (relation.out for _, relation in flow.layers if not relation.channelwise)


def _fixed(flow: ChannelFlow, wants: Sequence[Want]) -> Iterator[Positions]:
    """Classes of lines whose order is given, or needed as it is."""
    made = {relation.out for step in flow.steps for relation in step.relations}
    given = [line for line in flow.classes if line not in made]
    given += [
        relation.out
        for _, relation in flow.layers
        if relation.groups > 1 and not relation.channelwise
    ]
    for line in given:
        yield _channels(flow, line, np.arange(flow.sizes[line]))
    for want in wants:
        if want.pinned:
            yield _channels(flow, want.line, want.positions)


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
