"""Liveness: which channels anything still needs, once each layer reads only what it keeps.

A backward pass gives every line its live positions. In `x = stem(i); y = conv(x); head(y + x)`,
where `conv` keeps columns 0 and 2 and `head` 1 and 2, the sum needs 1 and 2 of `y` and of `x`; so
`conv` makes two rows, and the stem three channels: 0 for `conv` alone, 1 and 2 for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import numpy as np

from upscale.channels import Flags, Parameter, Places, Positions
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.lines import Line
from upscale.flow.relations import Kept, Live, Select


@dataclass(frozen=True, slots=True)
class Liveness:
    """What the pruned model still needs: positions of lines, whole values, and steps that run."""

    lines: Mapping[Line, Flags]
    values: frozenset[str]
    steps: frozenset[str]


def find_live(
    flow: ChannelFlow,
    kept: Kept,
    places: Places | None = None,
    whole: Mapping[int, int] | None = None,
) -> Liveness:
    """What is needed once each weight keeps only the given columns (all, if not named).

    A producer need compute only what some reader wants. Where a value is needed for its shape
    alone, its first channel stands witness. With places of classes, by stream, what lies between
    needed channels counts as needed too: needs have no holes. Streams with a number in `whole`
    are needed in multiples of it, where there are as many channels.
    """
    flags = np.zeros(sum(map(len, flow.classes.values())), dtype=bool)
    live, start = {}, 0
    for line, classes in flow.classes.items():
        live[line] = flags[start : start + len(classes)]
        start += len(classes)
    values: set[str] = set()
    hulls = [] if places is None else list(_hulls(flow, places, whole or {}))
    while True:
        before = np.count_nonzero(flags)
        for step in reversed(flow.steps):
            if _runs(step, values):
                _pull(flow, step, kept, live, values)
        for group in flow.tied:
            union = np.logical_or.reduce([live[line] for line in group])
            for line in group:
                live[line] |= union
        for hull in hulls:
            hull.fill(live[hull.line])
        settled = not flow.tied and not hulls
        if settled or np.count_nonzero(flags) == before:
            running = frozenset(step.node for step in flow.steps if _runs(step, values))
            return Liveness(live, frozenset(values), running)


def _runs(step: Step, values: Set[str]) -> bool:
    """Whether a step runs, if these values are needed."""
    return step.keeps or not step.makes or not values.isdisjoint(step.makes)


def _pull(flow: ChannelFlow, step: Step, kept: Kept, live: Live, values: set[str]) -> None:
    """Hand a step's needs on to what it reads."""
    for relation in reversed(step.relations):
        if relation.out is not None:
            needed = live[relation.out]
            if not needed.any() and (step.executed or relation.out.value in values):
                needed[:1] = True
            if relation.out in flow.blocks:
                loose = relation.out in flow.loose
                _even_out(needed.reshape(flow.blocks[relation.out], -1), loose=loose)
        relation.need(live, kept)
    if step.executed:
        values.update(step.reads)
        for line in () if step.shape_only else flow.unrelated[step.node]:
            live[line][:] = True
    else:
        for relation in step.relations:
            if isinstance(relation, Select):
                values.update(_values_selected(relation, live[relation.out]))


def _even_out(blocks: Flags, *, loose: bool) -> None:
    """Add channels until every block has as many as the fullest; but for empty ones, if `loose`."""
    most = int(blocks.sum(axis=1).max())
    for block in blocks:
        spare = np.flatnonzero(~block & (block.any() or not loose))
        block[spare[: most - int(block.sum())]] = True


def _values_selected(relation: Select, live: Flags) -> set[str]:
    """The values a selection takes from; constants, or nothing, are shaped like the first."""
    operands = np.unique(relation.operand[live]) if len(live) else np.zeros(1, dtype=np.int64)
    return {relation.reads[max(0, index)].value for index in operands.tolist()}


@dataclass(frozen=True, slots=True, eq=False)
class _Hull:
    """The channels of a line that are of one stream: all of them, if `own` is `None`.

    What lies between needed places is needed too, and whole blocks of channels.
    """

    line: Line
    own: Flags | None
    place: Positions
    block: int

    def fill(self, live: Flags) -> None:
        """Add what is needed beside what is live."""
        here = self.place[live if self.own is None else live & self.own]
        if not len(here):
            return
        first, last = here.min(), here.max()
        within = (self.place >= first) & (self.place <= last)
        own = np.ones_like(live) if self.own is None else self.own
        live |= within & own
        lacking = -np.count_nonzero(live & own) % self.block
        spare = np.flatnonzero(own & ~live) if lacking else ()
        if 0 < lacking <= len(spare):
            # Those behind first; where they do not suffice, those in front, the nearest first.
            place = self.place[spare]
            away = np.where(place > last, place, 2 * self.place.max() - place)
            live[spare[np.argsort(away, kind="stable")[:lacking]]] = True


def _hulls(flow: ChannelFlow, places: Places, whole: Mapping[int, int]) -> Iterator[_Hull]:
    """The hulls of lines whose classes all have a stream and a place in it.

    What a node makes for itself is as its result needs it.
    """
    selected = {relation.out for _, relation in flow.selects}
    for line, classes in flow.classes.items():
        stream = places.stream[classes]
        if len(stream) and line.value in flow.made and line not in selected and stream.min() >= 0:
            streams = {int(stream[0])} if (stream == stream[0]).all() else set(stream.tolist())
            for number in sorted(streams):
                own = stream == number if len(streams) > 1 else None
                yield _Hull(line, own, places.place[classes], whole.get(number, 1))


@dataclass(frozen=True, slots=True, eq=False)
class Want:
    """One read of a line: the positions it needs.

    A `pinned` want needs them in their own order too. A select's want is not `executed`.
    """

    node: str
    line: Line
    positions: Positions
    executed: bool
    pinned: bool


def columns_of(flow: ChannelFlow, kept: Kept) -> dict[str, Positions]:
    """The columns that every layer keeps: all, where nothing is said."""
    return {layer.layer: layer.columns_kept(kept) for _, layer in flow.layers}


def wants_of(flow: ChannelFlow, live: Liveness, kept: Kept) -> tuple[Want, ...]:
    """Every read of every line, with what it needs."""
    return tuple(
        want
        for step in flow.steps
        if step.node in live.steps and not step.shape_only
        for want in _wants_of_step(flow, step, live, kept)
    )


def _wants_of_step(flow: ChannelFlow, step: Step, live: Liveness, kept: Kept) -> Iterator[Want]:
    for relation in step.relations:
        for index, line in enumerate(relation.reads):
            if not isinstance(line.value, Parameter):
                positions, pinned = relation.wants(index, live.lines, kept)
                yield Want(step.node, line, positions, step.executed, pinned)
    for line in flow.unrelated[step.node] if step.executed else ():
        everything = np.arange(flow.sizes[line])
        yield Want(step.node, line, everything, executed=True, pinned=True)
