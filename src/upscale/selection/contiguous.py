"""Contiguous: every reader of a stream keeps its best channels within a window of one order.

Where windows cannot spare every copy, all readers of a stream keep the same channels, and where
even that would copy, they keep everything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from upscale.channels import Flags, Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.liveness import find_live
from upscale.flow.reads import wants_of
from upscale.flow.relations import Reduce
from upscale.flow.segments import carried_classes
from upscale.flow.untying import untied, written_anew
from upscale.lowering.lowered import Lowered
from upscale.planning import Plan, Way, make_plan
from upscale.planning.orders import find_streams, fixed_streams
from upscale.selection.choosing import Scores
from upscale.selection.windows import find_windows

# How readers of a stream choose: by windows, all the same, or not at all.
FREE, SAME, WHOLE = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one layer reads of one stream: its columns, and the channel each belongs to."""

    weight: str
    columns: Positions
    channels: Positions


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Channels that have one order, and who reads them. `given` if the order is not free.

    A stream is `plain` if each of its channels is one column of each reader. It is `alone` if
    its one reader needs no window, as the stream holds nothing but what that reads.
    """

    channels: Positions
    parts: tuple[Part, ...]
    given: bool
    plain: bool

    @property
    def alone(self) -> bool:
        return len(self.parts) == 1 and not (self.given and self.plain)


@dataclass(frozen=True, slots=True, eq=False)
class Windowed:
    """The channels each weight keeps, and what it reads beside them."""

    kept: Mapping[str, Flags]
    read: Mapping[str, Flags]


def keep_contiguous(
    flow: ChannelFlow, kept: Mapping[str, Flags], scores: Mapping[str, Scores], slack: float
) -> Windowed:
    """Let each weight keep as many channels as it does, but so that pruning copies nothing.

    What even the whole model would copy, a flip of channels for instance, does not count.
    """
    least: int | None = None
    streams = list(_streams(flow, kept))
    ways = [FREE if stream.plain or stream.alone else WHOLE for stream in streams]
    found = [
        _choose(stream, way, kept, scores, slack) for stream, way in zip(streams, ways, strict=True)
    ]
    while True:
        windowed = _together(kept, found)
        windows = _positions(windowed.read)
        plan = make_plan(Lowered(flow, _positions(windowed.kept), windows), Way(widen=False))
        if plan.copied_bytes and least is None:
            least = make_plan(Lowered(flow, {}), Way(widen=False)).copied_bytes
        if plan.copied_bytes <= (least or 0):
            return windowed
        guilty = _guilty(plan, flow, streams, ways)
        if not guilty:
            return windowed
        for index in guilty:
            ways[index] += 1
            found[index] = _choose(streams[index], ways[index], kept, scores, slack)


def _streams(flow: ChannelFlow, kept: Mapping[str, Flags]) -> Iterator[Stream]:
    """The streams that layers with a choice read."""
    cut = untied(flow, written_anew(flow))
    live = find_live(cut, {})
    components = find_streams(cut, live)
    carried = carried_classes(cut)
    fixed = fixed_streams(cut, components, wants_of(cut, live, {}))
    parts: dict[int, list[Part]] = defaultdict(list)
    members: dict[int, set[int]] = defaultdict(set)
    awkward: set[int] = set()
    uses = Counter(r.layer for s in cut.steps for r in s.relations if isinstance(r, Reduce))
    for step in cut.steps:
        for relation in step.relations:
            if not isinstance(relation, Reduce) or relation.channelwise:
                continue
            if relation.read not in cut.classes or relation.layer[1:] not in kept:
                continue
            classes = cut.classes[relation.read]
            if carried:
                classes = np.array([carried.get(c, c) for c in classes.tolist()])
            own = components[classes]
            for component in np.unique(own).tolist():
                mine = np.flatnonzero(own == component)
                if relation.groups > 1 or uses[relation.layer] > 1:
                    awkward.add(component)
                members[component].update(classes[mine].tolist())
                part = Part(relation.layer[1:], mine % relation.columns, classes[mine])
                parts[component].append(part)
    for component, readers in sorted(parts.items()):
        channels = np.array(sorted(members[component]), dtype=np.int64)
        given, plain = component in fixed, component not in awkward
        yield Stream(channels, tuple(readers), given, plain)


def _choose(
    stream: Stream, way: int, kept: Mapping[str, Flags], scores: Mapping[str, Scores], slack: float
) -> list[tuple[Part, Flags, Flags]]:
    """For each part which of its columns are kept, and which are read."""
    if way == FREE and stream.alone:
        part = stream.parts[0]
        own = kept[part.weight][part.columns]
        return [(part, own, own)]
    number = {channel: index for index, channel in enumerate(stream.channels.tolist())}
    worth = np.zeros((len(stream.parts), len(number)))
    keep = np.zeros(len(stream.parts), dtype=np.int64)
    owned = []
    for row, part in enumerate(stream.parts):
        own = np.array([number[channel] for channel in part.channels.tolist()])
        owned.append(own)
        np.add.at(worth[row], own, scores[part.weight][part.columns])
        share = kept[part.weight][part.columns].mean()
        keep[row] = max(1, round(float(share) * len(np.unique(own))))
    if way == WHOLE:
        every = [np.ones(len(number), dtype=bool)] * len(stream.parts)
        chosen = windows = every
    elif way == SAME:
        total = (worth / np.maximum(worth.sum(axis=1, keepdims=True), 1e-300)).sum(axis=0)
        best = np.argsort(-total, kind="stable")[: max(keep.tolist())]
        windows = [np.isin(np.arange(len(number)), best)] * len(stream.parts)
        chosen = windows
    else:
        order = np.arange(len(number)) if stream.given else None
        found = find_windows(worth, keep, slack, order=order)
        windows = [np.isin(np.arange(len(number)), window) for window in found]
        chosen = []
        for row, window in enumerate(found):
            best = window[np.argsort(-worth[row][window], kind="stable")[: keep[row]]]
            chosen.append(np.isin(np.arange(len(number)), best))
    return [
        (part, mine[own], window[own])
        for part, own, mine, window in zip(stream.parts, owned, chosen, windows, strict=True)
    ]


def _together(kept: Mapping[str, Flags], found: list[list[tuple[Part, Flags, Flags]]]) -> Windowed:
    """What the streams' choices make of every weight; the rest is kept as it was."""
    mine = {weight: own.copy() for weight, own in kept.items()}
    seen: dict[str, Flags] = {}
    for choice in found:
        for part, _, _ in choice:
            mine[part.weight][part.columns] = False
    for choice in found:
        for part, chosen, _ in choice:
            np.logical_or.at(mine[part.weight], part.columns, chosen)
    for choice in found:
        for part, _, window in choice:
            read = seen.setdefault(part.weight, mine[part.weight].copy())
            np.logical_or.at(read, part.columns, window)
    return Windowed(mine, seen)


def _guilty(plan: Plan, flow: ChannelFlow, streams: list[Stream], ways: list[int]) -> list[int]:
    """The freest of the streams that a plan copies channels of."""
    cut = untied(flow, written_anew(flow))
    carried = carried_classes(cut)
    edges = (*plan.graph.edges, *plan.graph.joins)
    copying = [edge for edge in edges if edge.copied_bytes]
    if not copying:
        copying = [edge for edge in edges if edge.concatenated_bytes]
    touched: set[int] = set()
    for edge in copying:
        for value in {edge.value, *(piece.value for piece in edge.pieces)}:
            for line in cut.lines.get(value, ()):
                touched.update(carried.get(c, c) for c in cut.classes[line].tolist())
    guilty = [
        index
        for index, stream in enumerate(streams)
        if ways[index] < WHOLE and touched.intersection(stream.channels.tolist())
    ]
    guilty = guilty or [index for index in range(len(streams)) if ways[index] < WHOLE]
    freest = min((ways[index] for index in guilty), default=WHOLE)
    return [index for index in guilty if ways[index] == freest]


def _positions(flags: Mapping[str, Flags]) -> dict[str, Positions]:
    return {f"@{weight}": np.flatnonzero(own) for weight, own in flags.items()}
