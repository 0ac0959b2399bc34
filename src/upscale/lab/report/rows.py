"""Rows: for channels that have one order, what each reader keeps and whether it copies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from upscale.channels import Positions, positions
from upscale.errors import PlanError
from upscale.flow.lines import GRID, Line
from upscale.flow.liveness import Want, find_live, wants_of
from upscale.flow.relations import Reduce
from upscale.flow.segments import find_segments
from upscale.lowering.lowered import Lowered
from upscale.planning import Edge, Plan, Way, make_plan
from upscale.planning.layouts import Layouts, runs
from upscale.planning.orders import find_streams
from upscale.planning.plan import origin_of
from upscale.tools.grouping import grouped


@dataclass(frozen=True, slots=True)
class Read:
    """How a reader gets its channels, and in how many stretches, in the order it needs them.

    `kind` is that of the plan's edge; `whole` where the reader takes all there is, `gone` where
    nothing runs. There are no `runs` to tell where other channels were joined to them first.
    """

    kind: str
    runs: int | None
    copies: bool


@dataclass(frozen=True, slots=True)
class Reader:
    """One read, by a node of a value: the channels it keeps of those its tensor holds.

    What is no layer is an operation that needs a part only, such as an addition to a tensor
    with fewer channels left.
    """

    name: str
    node: str
    value: str
    is_layer: bool
    kept: frozenset[int]
    held: frozenset[int]
    before: Read
    after: Read


@dataclass(frozen=True, slots=True)
class Rows:
    """Channels that have one order, and all who read some of them, as the model runs.

    The channels that `producers` compute are numbered from 0. Those still computed are listed
    in their own order, `before`, and in the plan's, `after`. Features that a channel was
    flattened into count as that channel.
    """

    segment: int | None
    producers: tuple[str, ...]
    channels: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    readers: tuple[Reader, ...]

    @property
    def shared(self) -> bool:
        """Whether there are several readers, and not all take everything."""
        partial = any(reader.kept != reader.held for reader in self.readers)
        return partial and len(self.readers) > 1

    @property
    def copies_before(self) -> int:
        """How many readers copy while channels stand in their own order."""
        return sum(reader.before.copies for reader in self.readers)

    @property
    def copies_after(self) -> int:
        """How many readers copy in the plan's order."""
        return sum(reader.after.copies for reader in self.readers)


def find_rows(plan: Plan) -> tuple[Rows, ...]:
    """Every group of channels that has one order and any reader."""
    origin = origin_of(plan)
    if origin is None:
        raise PlanError("a picture needs a plan that upscale.plan has just made; make it again")
    return _Reading(origin.lowered, plan).rows()


# A group of channels is known by one of its classes; where the order is given, by its line.
Group: TypeAlias = int | Line


class _Reading:
    def __init__(self, lowered: Lowered, plan: Plan) -> None:
        flow, kept = lowered.flow, lowered.kept
        self._flow, self._live = flow, find_live(flow, kept)
        bare = replace(lowered, windows={})
        self._in_place, self._plan = make_plan(bare, Way("none", widen=False)), plan
        self._wants = wants_of(flow, self._live, kept)
        self._by_line = grouped((want.line, want) for want in self._wants)
        self._layers = [(step, own) for step, own in flow.layers if not own.channelwise]
        self._components = find_streams(flow, self._live)
        self._carried = flow.carried
        self._segments = {
            weight: number
            for number, segment in enumerate(find_segments(flow))
            for weight in segment.producers
        }
        self._sources = Layouts(flow)
        for _, relation in flow.selects:
            self._sources.look_through(relation)

    def rows(self) -> tuple[Rows, ...]:
        readers = grouped(self._readers()).items()
        made = ((group, layer) for _, layer in self._layers for group in self._held(layer.out))
        producers = grouped(made)
        return tuple(self._numbered(group, producers[group], found) for group, found in readers)

    def _readers(self) -> Iterator[tuple[Group, Reader]]:
        """The read of every layer, and of whatever else takes only part of a tensor."""
        layers = {(s.node, own.read): own.name.removesuffix(".weight") for s, own in self._layers}
        turns = {step.node: turn for turn, step in enumerate(self._flow.steps)}
        before, after = self._edges(self._in_place), self._edges(self._plan)
        gone_before, gone_after = self._in_place.graph.gone, self._plan.graph.gone
        for want in sorted((*self._wants, *self._joins()), key=lambda want: turns[want.node]):
            read = (want.node, want.line)
            if want.executed and (read in layers or read in before or read in after):
                name = layers.get(read) or self._flow.steps[turns[want.node]].module
                for group, kept, held, values in self._parts(want):
                    reader = Reader(
                        name=name or want.node,
                        node=want.node,
                        value=want.line.value,
                        is_layer=read in layers,
                        kept=frozenset(kept),
                        held=frozenset(held),
                        before=_read(before.get(read), values, want.node in gone_before),
                        after=_read(after.get(read), values, want.node in gone_after),
                    )
                    yield group, reader

    def _edges(self, plan: Plan) -> dict[tuple[str, Line], Edge]:
        """The edge behind each read; that of a concatenation is its reader's, if it has one."""
        edges = {_read_by(edge): edge for edge in (*plan.graph.edges, *plan.graph.joins)}
        joins = {_read_by(edge)[1]: edge for edge in plan.graph.joins}
        alone = {line: wants[0].node for line, wants in self._by_line.items() if len(wants) == 1}
        return {(alone[line], line): joins[line] for line in joins if line in alone} | edges

    def _joins(self) -> Iterator[Want]:
        """Concatenations that copy where they are built once for several readers."""
        joins = (*self._in_place.graph.joins, *self._plan.graph.joins)
        for node, line in dict.fromkeys(_read_by(edge) for edge in joins if edge.copied_bytes):
            if len(self._by_line[line]) > 1:
                live = np.flatnonzero(self._live.lines[line])
                yield Want(node, line, live, executed=True, pinned=False)

    def _parts(self, want: Want) -> Iterator[tuple[Group, set[int], set[int], set[str]]]:
        """What a read keeps of each group, what there is of it, and the values that are its own."""
        found = self._sources.find(want.line, want.positions)
        kept: dict[Group, set[int]] = defaultdict(set)
        held: dict[Group, set[int]] = defaultdict(set)
        values: dict[Group, set[str]] = defaultdict(set)
        for number, root in enumerate(found.roots):
            if root is not None:
                for group, channels in self._held(root).items():
                    held[group] |= channels
                    values[group].add(root.value)
                wanted = found.position[found.root == number]
                for group, channels in self._split(root, wanted).items():
                    kept[group] |= channels
        for group in held:
            if kept[group] or not len(want.positions):
                others = set().union(*(values[other] for other in held if other != group))
                yield group, kept[group], held[group], values[group] - others

    def _held(self, line: Line) -> dict[Group, set[int]]:
        """The channels a line still has, by group."""
        live = self._live.lines.get(line)
        everything = np.arange(self._flow.sizes[line])
        return self._split(line, everything if live is None else everything[live])

    def _split(self, line: Line, wanted: Positions) -> dict[Group, set[int]]:
        """The channels at positions of a line, by group."""
        if line not in self._flow.classes:
            return {line: set(wanted.tolist())} if len(wanted) else {}
        classes = self._flow.classes[line][wanted].tolist()
        channels = positions([self._carried.get(c, c) for c in classes])
        split = grouped(zip(self._components[channels].tolist(), channels.tolist(), strict=True))
        return {group: set(own) for group, own in split.items()}

    def _numbered(self, group: Group, producers: list[Reduce], readers: list[Reader]) -> Rows:
        emitted = sorted((self._emitted(p) for p in producers), key=len, reverse=True)
        live = sorted(set().union(*emitted, *(reader.kept | reader.held for reader in readers)))
        known = set(live).union(*(self._flow.classes[p.out].tolist() for p in producers))
        number = {channel: at for at, channel in enumerate(sorted(known))}
        given = group.value if isinstance(group, Line) else "constants"
        segments = (self._segments[p.name] for p in producers if p.name in self._segments)

        def numbers(channels: Iterable[int]) -> frozenset[int]:
            return frozenset(number[channel] for channel in channels)

        return Rows(
            segment=next(segments, None),
            producers=tuple(p.name.removesuffix(".weight") for p in producers) or (given,),
            channels=len(known),
            before=tuple(number[channel] for channel in live),
            after=tuple(number[channel] for channel in _agreed([*emitted, live])),
            readers=tuple(
                replace(own, kept=numbers(own.kept), held=numbers(own.held)) for own in readers
            ),
        )

    def _emitted(self, producer: Reduce) -> list[int]:
        """The channels a layer computes in the plan, in order."""
        cut = self._plan.weights.cuts.get(producer.name, {}).get(producer.row_axis)
        rows = np.flatnonzero(self._live.lines[producer.out]) if cut is None else positions(cut)
        return list(dict.fromkeys(self._flow.classes[producer.out][rows].tolist()))


def _read_by(edge: Edge) -> tuple[str, Line]:
    """The node and the line it reads; an edge itself speaks of the axis it fetches along."""
    return edge.node, Line(edge.value, GRID if edge.spread else edge.axis)


def _read(edge: Edge | None, values: set[str], gone: bool) -> Read:
    """How an edge reads those of its pieces that are of the given values."""
    if edge is None:
        return Read("gone", 0, copies=False) if gone else Read("whole", 1, copies=False)
    own = [piece for piece in edge.pieces if piece.value in values]
    if not own:
        return Read(edge.kind, None, copies=edge.copied_bytes > 0)
    gathered = [piece.indices for piece in own if piece.indices is not None]
    stretches = sum(len(runs(positions(indices))) for indices in gathered)
    whole = len(own) - len(gathered)
    return Read(edge.kind, whole + stretches, copies=bool(gathered) or edge.kind == "runs")


def _agreed(layouts: Sequence[Sequence[int]]) -> list[int]:
    """One order that follows each layout where those before it are silent.

    >>> _agreed([[3, 1, 2], [1, 4]])
    [3, 1, 4, 2]
    """
    order: list[int] = []
    for layout in layouts:
        place = 0
        for channel in layout:
            if channel not in order:
                order.insert(place, channel)
            place = order.index(channel) + 1
    return order
