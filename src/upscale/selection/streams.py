"""Streams: how the readers of each stream choose, so that pruning copies nothing.

A stream is a set of classes that share one order, such as the residual stream of a stage: a
block's convolution can read it without a copy only if what it reads lies side by side. Readers
start out free, each with a window of one order (`window_search`). The choice is planned. Streams
that the plan still copies become stricter, one notch at a time: all readers keep the same
channels, and where even that would copy, they keep everything.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from upscale.channels import Flags, Parameter, Positions, positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.liveness import find_live, wants_of
from upscale.flow.untying import untied, written_anew
from upscale.lowering.lowered import Lowered
from upscale.planning import Plan, Way, make_plan
from upscale.planning.orders import find_streams, fixed_streams
from upscale.selection.scoring import Scores
from upscale.selection.window_search import find_windows

# How readers of a stream choose: by windows, all the same, or not at all.
FREE, SAME, WHOLE = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class WindowReader:
    """What one layer reads of one stream: its columns, and the class that each belongs to."""

    weight: str
    columns: Positions
    classes: Positions


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Classes that share one order, ascending, and who reads them. `fixed` if it is not free.

    A stream is `plain` if each of its classes is one column of each reader. It is `alone` if
    its one reader needs no window, as the stream holds nothing but what that reads.
    """

    classes: Positions
    readers: tuple[WindowReader, ...]
    fixed: bool
    plain: bool

    @property
    def alone(self) -> bool:
        return len(self.readers) == 1 and not (self.fixed and self.plain)


@dataclass(frozen=True, slots=True, eq=False)
class StreamChoice:
    """Which of its columns one reader keeps, and which it reads, zeros included."""

    reader: WindowReader
    kept: Flags
    read: Flags


def keep_contiguous(
    flow: ChannelFlow, kept: Mapping[str, Flags], scores: Mapping[str, Scores], slack: float
) -> tuple[dict[str, Flags], dict[str, Flags]]:
    """The channels each weight keeps, as many as it did, and what it reads: pruning copies nothing.

    What even the whole model would copy, a flip of channels for instance, does not count.
    """
    streams = list(_streams(flow, kept))
    ways = [FREE if stream.plain or stream.alone else WHOLE for stream in streams]
    choose = partial(_choose, kept=kept, scores=scores, slack=slack)
    choices = list(map(choose, streams, ways))
    unavoidable: int | None = None
    while True:
        chosen, read = _together(kept, list(chain.from_iterable(choices)))
        lowered = Lowered(flow, _positions(chosen), _positions(read))
        plan = make_plan(lowered, Way(widen=False))
        if plan.copied_bytes and unavoidable is None:
            unavoidable = make_plan(Lowered(flow, {}), Way(widen=False)).copied_bytes
        copies = plan.copied_bytes > (unavoidable or 0)
        guilty = _guilty(plan, flow, streams, ways) if copies else []
        if not guilty:
            return chosen, read
        for index in guilty:
            ways[index] += 1
            choices[index] = choose(streams[index], ways[index])


def _streams(flow: ChannelFlow, kept: Mapping[str, Flags]) -> Iterator[Stream]:
    """The streams that layers with a choice read."""
    cut = untied(flow, written_anew(flow))
    live = find_live(cut, {})
    stream_of = find_streams(cut, live)
    carried = cut.carried
    fixed = fixed_streams(cut, stream_of, wants_of(cut, live, {}))
    readers: dict[int, list[WindowReader]] = defaultdict(list)
    awkward: set[int] = set()
    uses = Counter(relation.layer for _, relation in cut.layers)
    for _, relation in cut.layers:
        chooses = relation.name in kept and not relation.channelwise
        if not chooses or relation.read not in cut.classes:
            continue
        classes = positions([carried.get(c, c) for c in cut.classes[relation.read].tolist()])
        streams = stream_of[classes]
        for stream in np.unique(streams).tolist():
            here = np.flatnonzero(streams == stream)
            if relation.groups > 1 or uses[relation.layer] > 1:
                awkward.add(stream)
            reader = WindowReader(relation.name, here % relation.columns, classes[here])
            readers[stream].append(reader)
    for stream, own in sorted(readers.items()):
        classes = np.unique(np.concatenate([reader.classes for reader in own]))
        yield Stream(classes, tuple(own), stream in fixed, stream not in awkward)


def _choose(
    stream: Stream, way: int, kept: Mapping[str, Flags], scores: Mapping[str, Scores], slack: float
) -> list[StreamChoice]:
    """What each reader of a stream keeps and reads of it."""
    if way == FREE and stream.alone:
        reader = stream.readers[0]
        flags = kept[reader.weight][reader.columns]
        return [StreamChoice(reader, flags, flags)]
    width = len(stream.classes)
    numbers = [np.searchsorted(stream.classes, reader.classes) for reader in stream.readers]
    pairs = list(zip(stream.readers, numbers, strict=True))
    scored = [np.bincount(own, scores[r.weight][r.columns], width) for r, own in pairs]
    shares = [float(kept[r.weight][r.columns].mean()) * len(np.unique(own)) for r, own in pairs]
    worth, keep = np.array(scored, float), np.array([max(1, round(share)) for share in shares])
    if way == WHOLE:
        chosen = windows = [np.arange(width)] * len(numbers)
    elif way == SAME:
        total = (worth / np.maximum(worth.sum(axis=1, keepdims=True), 1e-300)).sum(axis=0)
        best = np.argsort(-total, kind="stable")[: max(keep.tolist())]
        chosen = windows = [best] * len(numbers)
    else:
        windows = find_windows(worth, keep, slack, order=np.arange(width) if stream.fixed else None)
        chosen = [
            window[np.argsort(-worth[row][window], kind="stable")[: keep[row]]]
            for row, window in enumerate(windows)
        ]
    return [
        StreamChoice(reader, np.isin(own, mine), np.isin(own, window))
        for reader, own, mine, window in zip(stream.readers, numbers, chosen, windows, strict=True)
    ]


def _together(
    kept: Mapping[str, Flags], choices: Sequence[StreamChoice]
) -> tuple[dict[str, Flags], dict[str, Flags]]:
    """What every weight keeps and reads by all choices; columns of no stream stay as they were."""
    chosen = {weight: flags.copy() for weight, flags in kept.items()}
    for choice in choices:
        chosen[choice.reader.weight][choice.reader.columns] = False
    for choice in choices:
        # Columns of a grouped layer are there once for each group: what one keeps, all do.
        np.logical_or.at(chosen[choice.reader.weight], choice.reader.columns, choice.kept)
    read = {choice.reader.weight: chosen[choice.reader.weight].copy() for choice in choices}
    for choice in choices:
        np.logical_or.at(read[choice.reader.weight], choice.reader.columns, choice.read)
    return chosen, read


def _guilty(plan: Plan, flow: ChannelFlow, streams: list[Stream], ways: list[int]) -> list[int]:
    """The freest of the streams that a plan copies channels of."""
    cut = untied(flow, written_anew(flow))
    carried = cut.carried
    edges = (*plan.graph.edges, *plan.graph.joins)
    copying = [e for e in edges if e.copied_bytes] or [e for e in edges if e.concatenated_bytes]
    values = {edge.value for edge in copying} | {p.value for e in copying for p in e.pieces}
    lines = [line for value in values for line in cut.lines.get(value, ())]
    touched = {carried.get(c, c) for line in lines for c in cut.classes[line].tolist()}
    free = [index for index, way in enumerate(ways) if way < WHOLE]
    guilty = [i for i in free if not touched.isdisjoint(streams[i].classes.tolist())] or free
    freest = min((ways[index] for index in guilty), default=WHOLE)
    return [index for index in guilty if ways[index] == freest]


def _positions(flags: Mapping[str, Flags]) -> dict[str, Positions]:
    return {Parameter(weight): np.flatnonzero(own) for weight, own in flags.items()}
