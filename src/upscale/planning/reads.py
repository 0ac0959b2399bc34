"""Families: every read becomes a set of channels that wants to be contiguous, and is ordered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from upscale.channels import Places, Positions, positions
from upscale.flow.liveness import (
    Liveness,
    carried_classes,
    columns_kept,
    groups_kept,
)
from upscale.flow.relations import (
    Absorb,
    Carry,
    ChannelFlow,
    Classes,
    Fold,
    Line,
    Pass,
    Reduce,
    Relation,
    Select,
    Step,
    relation_reads,
)
from upscale.ordering import solve
from upscale.planning.layouts import Layouts

# A run more in a concatenation that copies anyway is nearly free next to a copy of its own.
CONCATENATED = 1e-6
# The longest that a search for one family's order may take: where a copy is at stake, and where
# the runs are concatenated anyway.
SECONDS, SECONDS_IF_CONCATENATED = 1.0, 0.01


# A set of classes that want to be contiguous, the bytes a copy writes for each, and whether they
# are concatenated with others anyway.
Weighed = tuple[Positions, float, bool]


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


def wants_of(flow: ChannelFlow, live: Liveness, kept: Mapping[str, Positions]) -> tuple[Want, ...]:
    """Every read of every line, with what it needs."""
    return tuple(
        want
        for step in flow.steps
        if live.needs(step) and not step.shape_only
        for want in _wants_of_step(flow, step, live, kept)
    )


@dataclass(frozen=True, slots=True)
class Orders:
    """Stream and place of every class whose order is free, the bytes of reads that the orders
    leave apart, and the bytes that any would."""

    places: Places
    cost: float = 0.0
    lower_bound: float = 0.0


def order_classes(
    flow: ChannelFlow,
    live: Liveness,
    wants: Sequence[Want],
    order: str,
    sets: Iterable[Weighed] | None = None,
) -> Orders:
    """Order every class of channels whose order is free.

    Classes that one layer computes are ordered together. Where one of them stands in a tensor
    whose order is given, all stay in their own. `sets` replaces what the wants ask for.
    """
    if order == "none":
        return Orders(Places.none(flow.class_count))
    carried = carried_classes(flow)
    components = find_components(flow, live)
    fixed = fixed_components(flow, components, wants)
    families: dict[int, dict[frozenset[int], float]] = defaultdict(lambda: defaultdict(float))
    costly: set[int] = set()
    asked = _weighed(flow, live, wants, carried) if sets is None else sets
    for channels, weight, joined in asked:
        own = components.find(channels)
        together = np.unique(own).tolist()
        if joined or len(together) > 1:
            weight *= CONCATENATED
        elif weight:
            costly.update(together)
        for component in together:
            members = channels[own == component]
            families[component][frozenset(members.tolist())] += weight * len(members)
    places = Places.none(flow.class_count)
    cost = bound = 0.0
    for component in sorted(families.keys() - fixed):
        family = families[component]
        seconds = SECONDS if component in costly else SECONDS_IF_CONCATENATED
        solved = solve(list(family), list(family.values()), method=order, time_limit=seconds)
        channels = positions(solved.order)
        places.stream[channels], places.place[channels] = component, np.arange(len(channels))
        cost, bound = cost + solved.cost, bound + solved.lower_bound
    return Orders(places, cost, bound)


def windows_read(
    flow: ChannelFlow, live: Liveness, read: Mapping[str, Positions]
) -> Iterator[Weighed]:
    """What each layer reads, as sets that want to be contiguous, all alike."""
    carried = carried_classes(flow)
    for step in flow.steps:
        for relation in step.relations if live.needs(step) else ():
            if isinstance(relation, Reduce) and not relation.channelwise:
                positions, _ = _wanted(flow, relation, 0, live, read)
                channels = _channels(flow, relation.read, positions, carried)
                if len(channels):
                    yield channels, 1.0, False
    # What no layer reads here may still be needed, behind a cut.
    for line in _computed_lines(flow):
        yield flow.classes[line][live.lines[line]], 0.0, False


def fixed_components(flow: ChannelFlow, components: Classes, wants: Sequence[Want]) -> set[int]:
    """The components whose order is given."""
    given = [*_fixed(flow, wants, carried_classes(flow)), np.empty(0, dtype=np.int64)]
    return set(components.find(np.concatenate(given)).tolist())


def find_components(flow: ChannelFlow, live: Liveness) -> Classes:
    """Classes of channels, merged where one layer computes them: they have one order."""
    components = Classes()
    components.fresh(flow.class_count)
    for line in _computed_lines(flow):
        own = flow.classes[line][live.lines[line]]
        components.merge(own[1:], np.repeat(own[:1], max(0, len(own) - 1)))
    return components


def _weighed(
    flow: ChannelFlow, live: Liveness, wants: Sequence[Want], carried: Mapping[int, int]
) -> Iterator[Weighed]:
    """The sets that want to be contiguous, by what their copies would write."""
    seen_through = Layouts(flow)
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Select):
                seen_through.look_through(relation)
    anew = frozenset(_put_together(flow, seen_through))
    for want in wants:
        if not want.executed or not len(want.positions):
            continue
        found = seen_through.find(want.line, want.positions)
        weight = flow.nbytes[want.line.value] / max(1, flow.size(want.line))
        alive = live.lines.get(want.line)
        whole = alive is not None and len(want.positions) == alive.sum()
        if found.roots == (want.line,) and whole:
            weight = 0.0  # the whole tensor is read, in whatever order it is
        for number, root in enumerate(found.roots):
            channels = _channels(flow, root, found.position[found.root == number], carried)
            if len(channels):
                yield channels, weight, len(found.roots) > 1 or root in anew


def _put_together(flow: ChannelFlow, seen_through: Layouts) -> Iterator[Line]:
    """Lines that lie as the tensors lie which a sum of parts was put together from: no order of
    channels makes a part of them contiguous."""
    for step in flow.steps:
        for relation in step.relations if step.executed else ():
            if isinstance(relation, Pass):
                tracked = [line for line in relation.reads if line in flow.classes]
                if len(tracked) == 1 and not seen_through.joins(tracked[0]):
                    found = seen_through.find(tracked[0], np.arange(flow.size(tracked[0])))
                    if len(found.roots) > 1:
                        yield relation.out


def _channels(
    flow: ChannelFlow, line: Line | None, positions: Positions, carried: Mapping[int, int]
) -> Positions:
    """The classes of channels at positions of a line; features count as their channels."""
    if line is None or line not in flow.classes:
        return np.empty(0, dtype=np.int64)
    classes = flow.classes[line][positions]
    if carried:
        return np.array([carried.get(c, c) for c in classes.tolist()], dtype=np.int64)
    return classes


def _computed_lines(flow: ChannelFlow) -> Iterator[Line]:
    """Lines whose order is a layer's to choose."""
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and not relation.channelwise:
                yield relation.out


def _fixed(
    flow: ChannelFlow, wants: Sequence[Want], carried: Mapping[int, int]
) -> Iterator[Positions]:
    """Classes of lines whose order is given, or needed as it is."""
    made = set()
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Absorb):
                continue
            made.add(relation.out)
            if isinstance(relation, Reduce) and relation.groups > 1 and not relation.channelwise:
                yield _channels(flow, relation.out, np.arange(flow.size(relation.out)), carried)
    for line in flow.classes.keys() - made:
        yield _channels(flow, line, np.arange(flow.size(line)), carried)
    for want in wants:
        if want.pinned:
            yield _channels(flow, want.line, want.positions, carried)


def _wants_of_step(
    flow: ChannelFlow, step: Step, live: Liveness, kept: Mapping[str, Positions]
) -> Iterator[Want]:
    covered = set()
    for relation in step.relations:
        for index, line in enumerate(relation_reads(relation)):
            covered.add(line)
            if not line.value.startswith("@"):
                positions, pinned = _wanted(flow, relation, index, live, kept)
                yield Want(step.node, line, positions, step.executed, pinned)
    if step.executed:
        for value in step.reads:
            for line in flow.lines_of(value):
                if line not in covered:
                    everything = np.arange(flow.size(line))
                    yield Want(step.node, line, everything, step.executed, pinned=True)


def _wanted(
    flow: ChannelFlow,
    relation: Relation,
    index: int,
    live: Liveness,
    kept: Mapping[str, Positions],
) -> tuple[Positions, bool]:
    """The positions a relation needs of the line it reads as `index`, and whether pinned."""
    if isinstance(relation, Absorb):
        return np.arange(flow.size(relation.read)), False
    out = np.flatnonzero(live.lines[relation.out])
    if isinstance(relation, Pass):
        return out, False
    if isinstance(relation, Fold):
        return np.unique(relation.table[out]), False
    if isinstance(relation, Carry):
        return np.flatnonzero(live.lines[relation.read]), False
    if isinstance(relation, Select):
        return np.unique(relation.position[out[relation.operand[out] == index]]), False
    columns = columns_kept(relation, kept)
    if relation.channelwise:
        return (out if len(columns) else columns), False
    if relation.groups > 1:
        groups = groups_kept(relation, live.lines[relation.out])
        return (groups[:, None] * relation.columns + columns).reshape(-1), True
    return columns, False
