"""Cuts: where a copy is made anyway, the order behind it need not be the order before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from upscale.channels import Positions
from upscale.flow.relations import (
    GRID,
    Carry,
    ChannelFlow,
    Classes,
    Fold,
    Line,
    Pass,
    Reduce,
    Relation,
    Select,
    relation_reads,
)

Cut = tuple[str, Line]


def written_anew(flow: ChannelFlow) -> frozenset[Cut]:
    """Reads, by node, of what the model puts together anew next to other channels.

    A concatenation or a padding writes its result whatever the order; where it is added to
    something else, that can choose.
    """
    anew = {
        relation.out
        for step in flow.steps
        for relation in step.relations
        if isinstance(relation, Select) and relation.joined
    }
    return frozenset(cut for cut in _meetings(flow) if cut[1] in anew)


def copied(flow: ChannelFlow, edges: frozenset[tuple[str, str]]) -> frozenset[Cut]:
    """Reads at additions among the given edges, which are (node, value) and copy."""
    return frozenset(cut for cut in _meetings(flow) if (cut[0], cut[1].value) in edges)


def untied(flow: ChannelFlow, cuts: frozenset[Cut]) -> ChannelFlow:
    """The flow with fresh classes behind the cuts: what is read there ties no order."""
    classes = Classes()
    known: dict[Line, Positions] = {}
    for step in flow.steps:
        for relation in step.relations:
            for line in relation_reads(relation):
                if line in flow.classes and line not in known:
                    known[line] = classes.fresh(flow.size(line))
            made = _made(flow, step.node, relation, known, classes, cuts)
            if made is not None:
                known[relation.out] = made  # type: ignore[union-attr]  # absorbs make nothing
    for line in flow.classes.keys() - known.keys():
        known[line] = classes.fresh(flow.size(line))
    return replace(flow, classes={line: classes.find(known[line]) for line in flow.classes})


def _made(
    flow: ChannelFlow,
    node: str,
    relation: Relation,
    known: dict[Line, Positions],
    classes: Classes,
    cuts: frozenset[Cut],
) -> Positions | None:
    """The classes of what a relation makes."""
    if isinstance(relation, Pass):
        reads = [line for line in relation.reads if line in known]
        tied = [known[line] for line in reads if (node, line) not in cuts] or [
            known[line] for line in reads[:1]
        ]
        for other in tied[1:]:
            classes.merge(tied[0], other)
        return tied[0] if tied else classes.fresh(flow.size(relation.out))
    if isinstance(relation, Fold):
        own = known[relation.read]
        for part in range(1, relation.table.shape[1]):
            classes.merge(own[relation.table[:, 0]], own[relation.table[:, part]])
        return own[relation.table[:, 0]]
    if isinstance(relation, Select):
        own = classes.fresh(len(relation.operand))
        for index, line in enumerate(relation.reads):
            mine = np.flatnonzero(relation.operand == index)
            if line in known and relation.out in flow.classes:
                # A channel that is read for others with the same number is none of theirs.
                there = flow.classes[line][relation.position[mine]]
                mine = mine[flow.classes[relation.out][mine] == there]
                own[mine] = known[line][relation.position[mine]]
        return own
    if isinstance(relation, Reduce) and relation.channelwise and relation.read in known:
        return known[relation.read]
    if isinstance(relation, (Carry, Reduce)):
        return classes.fresh(flow.size(relation.out))
    return None


def _meetings(flow: ChannelFlow) -> Iterator[Cut]:
    """Every read at a step where several tensors' channels meet."""
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Pass):
                tensors = [line for line in relation.reads if line in flow.classes]
                if len(tensors) > 1:
                    for line in tensors:
                        if line.value in step.reads and line.axis != GRID:
                            yield step.node, line
