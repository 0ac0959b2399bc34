"""Liveness: which channels anything still needs, once each layer reads only what it keeps.

A backward pass gives every line its live positions. In `x = stem(i); y = conv(x); head(y + x)`,
where `conv` keeps columns 0 and 2 and `head` 1 and 2, the sum needs 1 and 2 of `y` and of `x`; so
`conv` makes two rows, and the stem three channels: 0 for `conv` alone, 1 and 2 for both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import numpy as np

from upscale.channels import Flags, Parameter, Places, Positions
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.relations import Kept, Line, Live, Pass, Select


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
    hulls = {} if places is None else _hulls(flow, places)
    live = {line: np.zeros(flow.sizes[line], dtype=bool) for line in flow.classes}
    values: set[str] = set()
    ties = tied_lines(flow)
    while True:
        before = sum(int(flags.sum()) for flags in live.values())
        for step in reversed(flow.steps):
            if _runs(step, values):
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
                _even_out(needed.reshape(flow.blocks[relation.out], -1))
        relation.need(live, kept)
    if step.executed:
        values.update(step.reads)
        for line in () if step.shape_only else flow.unrelated(step):
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
    selected = {relation.out for _, relation in flow.selects}
    hulls = {}
    for line, classes in flow.classes.items():
        stream = places.stream[classes]
        if len(stream) and line.value in made and line not in selected and stream.min() >= 0:
            hulls[line] = (stream, places.place[classes])
    return hulls


def tied_lines(flow: ChannelFlow) -> list[tuple[Line, ...]]:
    """Lines that need one layout: they cut one parameter's axis, one node makes them at once,
    or their channels stay spread over the same axes."""
    users: dict[object, list[Line]] = defaultdict(list)
    for step in flow.steps:
        for relation in step.relations:
            if relation.out is not None:
                for line in relation.cuts:
                    users[line].append(relation.out)
        for relation in step.relations if step.executed else ():
            if isinstance(relation, Pass):
                computed = [r for r in relation.reads if not isinstance(r.value, Parameter)]
                lead = (computed or relation.reads)[0]
                if lead in flow.blocks:
                    users[step.node, lead].append(lead)
                users[step.node, lead].append(relation.out)
    return [group for outs in users.values() if len(group := tuple(dict.fromkeys(outs))) > 1]


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
    for line in flow.unrelated(step) if step.executed else ():
        everything = np.arange(flow.sizes[line])
        yield Want(step.node, line, everything, executed=True, pinned=True)
