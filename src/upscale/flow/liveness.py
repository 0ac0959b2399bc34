"""Segments and live sets: which layers share channels, and which channels anything needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np

from upscale.channels import Flags, Places, Positions
from upscale.flow.relations import (
    Absorb,
    Carry,
    ChannelFlow,
    Fold,
    Line,
    Pass,
    Reduce,
    Relation,
    Select,
    Step,
    relation_reads,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Producers and consumers connected through shared channels, by their weights' names."""

    producers: tuple[str, ...]
    consumers: tuple[str, ...]

    @property
    def single_branch(self) -> bool:
        """Whether one producer feeds one consumer, and nothing else."""
        return len(self.producers) == 1 and len(self.consumers) == 1


@dataclass(frozen=True, slots=True)
class Liveness:
    """What the pruned model still needs: positions of lines, and whole values."""

    lines: Mapping[Line, Flags]
    values: frozenset[str]

    def needs(self, step: Step) -> bool:
        """Whether a step has to run at all."""
        return _asked(step, self.values)


def find_segments(flow: ChannelFlow) -> tuple[Segment, ...]:
    """The segments of a flow: start at a producer, add consumers, their producers, and so on."""
    carried = carried_classes(flow)
    makers: dict[int, set[str]] = defaultdict(set)
    readers: dict[int, set[str]] = defaultdict(set)

    def channels(line: Line) -> set[int]:
        return {carried.get(c, c) for c in flow.classes[line].tolist()}

    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and not relation.channelwise:
                for channel in channels(relation.out):
                    makers[channel].add(relation.weight)
                if relation.read in flow.classes:
                    for channel in channels(relation.read):
                        readers[channel].add(relation.weight)
    return _connected(makers, readers)


def carried_classes(flow: ChannelFlow) -> dict[int, int]:
    """The class of the channel that each merged feature's class is part of."""
    carried: dict[int, int] = {}
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Carry):
                features = np.arange(flow.size(relation.out))
                channels = relation.channel(features, flow.size(relation.read))
                sources = flow.classes[relation.read][channels].tolist()
                for feature, source in zip(
                    flow.classes[relation.out].tolist(), sources, strict=True
                ):
                    carried[feature] = carried.get(source, source)
    return carried


def _connected(
    makers: Mapping[int, set[str]], readers: Mapping[int, set[str]]
) -> tuple[Segment, ...]:
    """Join channels that share a producer or a consumer, each in its role."""
    links: dict[tuple[str, str], set[int]] = defaultdict(set)
    ends: dict[int, set[tuple[str, str]]] = {}
    for channel, producers in makers.items():
        ends[channel] = {("producer", p) for p in producers}
        ends[channel] |= {("consumer", c) for c in readers.get(channel, ())}
        for end in ends[channel]:
            links[end].add(channel)
    segments, seen = [], set()
    for channel in sorted(ends):
        if channel in seen:
            continue
        found: set[tuple[str, str]] = set()
        front = [channel]
        seen.add(channel)
        while front:
            for end in ends[front.pop()] - found:
                found.add(end)
                front += links[end] - seen
                seen |= links[end]
        segments.append(
            Segment(
                tuple(sorted(name for role, name in found if role == "producer")),
                tuple(sorted(name for role, name in found if role == "consumer")),
            )
        )
    return tuple(segments)


def find_live(
    flow: ChannelFlow,
    kept: Mapping[str, Positions],
    places: Places | None = None,
    whole: Mapping[int, int] | None = None,
) -> Liveness:
    """What is needed once each weight keeps only the given columns (all, if not named).

    A backward pass: a producer need compute only what some reader wants. Where a value is
    needed for its shape alone, its first channel stands witness. With places of classes, by
    stream, what lies between needed channels counts as needed too: needs have no holes. Streams
    with a number in `whole` are needed in multiples of it, where there are as many channels.
    """
    hulls = {} if places is None else _hulls(flow, places)
    live = {line: np.zeros(flow.size(line), dtype=bool) for line in flow.classes}
    values: set[str] = set()
    ties = tied_lines(flow)
    while True:
        before = sum(int(flags.sum()) for flags in live.values())
        for step in reversed(flow.steps):
            _pull(flow, step, kept, live, values)
        for group in ties:
            union = np.logical_or.reduce([live[line] for line in group])
            for line in group:
                live[line] |= union
        for line, (stream, place) in hulls.items():
            for number in np.unique(stream[live[line]]).tolist():
                own = stream == number
                here = place[live[line] & own]
                live[line] |= (place >= here.min()) & (place <= here.max()) & own
                _round_up(live[line], own, place, (whole or {}).get(number, 1))
        settled = not ties and not hulls
        if settled or sum(int(flags.sum()) for flags in live.values()) == before:
            return Liveness(live, frozenset(values))


def _round_up(live: Flags, own: Flags, place: Positions, block: int) -> None:
    """Add channels, the next in order, until blocks are whole; none, if there are too few."""
    lacking = -int((live & own).sum()) % block
    spare = np.flatnonzero(own & ~live)
    if 0 < lacking <= len(spare):
        last = place[live & own].max()
        # Those behind first; where they do not suffice, those in front, the nearest first.
        away = np.where(place[spare] > last, place[spare], 2 * place.max() - place[spare])
        live[spare[np.argsort(away, kind="stable")[:lacking]]] = True


def _hulls(flow: ChannelFlow, places: Places) -> dict[Line, tuple[Positions, Positions]]:
    """Stream and place of every position of lines whose classes all have one.

    What a node makes for itself is as its result needs it.
    """
    made = {value for step in flow.steps for value in step.makes}
    selects = {
        relation.out
        for step in flow.steps
        for relation in step.relations
        if isinstance(relation, Select)
    }
    found = {}
    for line, classes in flow.classes.items():
        stream = places.stream[classes]
        if len(stream) and line.value in made and line not in selects and stream.min() >= 0:
            found[line] = (stream, places.place[classes])
    return found


def tied_lines(flow: ChannelFlow) -> list[tuple[Line, ...]]:
    """Lines that need one layout: they cut one parameter's axis, one node makes them at once,
    or their channels stay spread over the same axes."""
    users: dict[Line, list[Line]] = defaultdict(list)
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce):
                for line in (Line(relation.weight, relation.row_axis), *relation.beside):
                    users[line].append(relation.out)
            elif isinstance(relation, Pass):
                for line in relation.reads:
                    if line.value.startswith("@"):
                        users[line].append(relation.out)
        if step.executed:
            for relation in step.relations:
                if isinstance(relation, Pass):
                    computed = [r for r in relation.reads if not r.value.startswith("@")]
                    lead = (computed or relation.reads)[0]
                    here = Line(f"{step.node} {lead.value}", lead.axis)
                    if lead in flow.blocks:
                        users[here].append(lead)
                    users[here].append(relation.out)
    return [group for outs in users.values() if len(group := tuple(dict.fromkeys(outs))) > 1]


def groups_kept(relation: Reduce, live: Flags) -> Positions:
    """The groups of a grouped convolution that make anything live."""
    return np.flatnonzero(live.reshape(relation.groups, -1).any(axis=1))


def columns_kept(relation: Reduce, kept: Mapping[str, Positions]) -> Positions:
    """The columns of a layer's weight that its selection keeps."""
    return kept.get(relation.layer, np.arange(relation.columns))


def _asked(step: Step, values: Set[str]) -> bool:
    """Whether a step runs, if these values are needed."""
    return step.keeps or not step.makes or not values.isdisjoint(step.makes)


def _pull(
    flow: ChannelFlow,
    step: Step,
    kept: Mapping[str, Positions],
    live: dict[Line, Flags],
    values: set[str],
) -> None:
    """Hand a step's needs on to what it reads."""
    if not _asked(step, values):
        return
    for relation in reversed(step.relations):
        if not isinstance(relation, Absorb):
            own = live[relation.out]
            if not own.any() and (step.executed or relation.out.value in values):
                own[:1] = True
            if relation.out in flow.blocks:
                _even_out(own.reshape(flow.blocks[relation.out], -1))
        _pull_relation(relation, kept, live)
    if step.executed:
        values.update(step.reads)
        covered = {line for relation in step.relations for line in relation_reads(relation)}
        for value in () if step.shape_only else step.reads:
            for line in flow.lines_of(value):
                if line not in covered:
                    live[line][:] = True
    else:
        for relation in step.relations:
            if isinstance(relation, Select):
                values.update(_values_selected(relation, live[relation.out]))


def _even_out(blocks: Flags) -> None:
    """Add channels until every block has as many as the fullest."""
    most = int(blocks.sum(axis=1).max())
    for block in blocks:
        spare = np.flatnonzero(~block)
        block[spare[: most - int(block.sum())]] = True


def _values_selected(relation: Select, live: Flags) -> set[str]:
    """The values a selection takes from; constants, or nothing, are shaped like the first."""
    operands = np.unique(relation.operand[live]) if len(live) else np.zeros(1, dtype=np.int64)
    return {relation.reads[max(0, index)].value for index in operands.tolist()}


def _pull_relation(
    relation: Relation, kept: Mapping[str, Positions], live: dict[Line, Flags]
) -> None:
    if isinstance(relation, Absorb):
        live[relation.read][:] = True
    elif isinstance(relation, Pass):
        wanted = live[relation.out]
        for line in relation.reads:
            if line in live:
                live[line] |= wanted | (relation.whole and bool(wanted.any()))
        if relation.whole and wanted.any():
            wanted[:] = True
    elif isinstance(relation, Fold):
        live[relation.read][relation.table[live[relation.out]].reshape(-1)] = True
    elif isinstance(relation, Carry):
        features = np.flatnonzero(live[relation.out])
        size = len(live[relation.read])
        live[relation.read][relation.channel(features, size)] = True
    elif isinstance(relation, Select):
        needed = np.flatnonzero(live[relation.out])
        for index, line in enumerate(relation.reads):
            mine = needed[relation.operand[needed] == index]
            live[line][relation.position[mine]] = True
    else:
        _pull_reduce(relation, kept, live)


def _pull_reduce(relation: Reduce, kept: Mapping[str, Positions], live: dict[Line, Flags]) -> None:
    out, columns = live[relation.out], columns_kept(relation, kept)
    if relation.groups > 1:
        groups = groups_kept(relation, out)
        out.reshape(relation.groups, -1)[groups] = True
        wanted = (groups[:, None] * relation.columns + columns[None, :]).reshape(-1)
    else:
        wanted = columns
    if relation.read in live and out.any():
        live[relation.read][wanted] = True
