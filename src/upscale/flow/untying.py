"""Untying: where a copy is made anyway, the order behind it need not be the order before it.

`z = cat(a, b) + y` writes `cat(a, b)` anew whatever the order, so `z` and `y` may have an order of
their own. A *cut* is such a read, by node and line; behind it classes are fresh.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow, Classes
from upscale.flow.lines import GRID, Line

Cut = tuple[str, Line]


def written_anew(flow: ChannelFlow) -> frozenset[Cut]:
    """Reads of what the model puts together anew next to other channels.

    A concatenation or a padding writes its result whatever the order; where it is added to
    something else, that can choose.
    """
    anew = {relation.out for _, relation in flow.selects if relation.joined}
    return frozenset(cut for cut in _meetings(flow) if cut[1] in anew)


def copied(flow: ChannelFlow, edges: frozenset[tuple[str, str]]) -> frozenset[Cut]:
    """Reads at additions among the given edges, which are (node, value) and copy."""
    return frozenset(cut for cut in _meetings(flow) if (cut[0], cut[1].value) in edges)


def _meetings(flow: ChannelFlow) -> Iterator[Cut]:
    """Every read at a step where several tensors' channels meet."""
    for step, relation in flow.passes:
        tensors = [line for line in relation.reads if line in flow.classes]
        for line in tensors if len(tensors) > 1 else ():
            if line.value in step.reads and line.axis != GRID:
                yield step.node, line


def untied(flow: ChannelFlow, cuts: frozenset[Cut]) -> ChannelFlow:
    """The flow with fresh classes behind the cuts: what is read there ties no order."""
    classes = Classes()
    known: dict[Line, Positions] = {}
    apart_at: dict[str, set[Line]] = defaultdict(set)
    for node, line in cuts:
        apart_at[node].add(line)
    for step in flow.steps:
        apart = apart_at.get(step.node, ())
        for relation in step.relations:
            for line in relation.reads:
                if line in flow.classes and line not in known:
                    known[line] = classes.fresh(flow.sizes[line])
            if relation.out is not None:
                tied = relation.tie(classes, known, apart)
                made = classes.fresh(flow.sizes[relation.out]) if tied is None else tied
                known[relation.out] = made
    for line in flow.classes.keys() - known.keys():
        known[line] = classes.fresh(flow.sizes[line])
    return replace(flow, classes={line: classes.find(known[line]) for line in flow.classes})
