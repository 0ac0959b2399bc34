"""Reads: which positions of which line each step wants, once it is known what is live. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.liveness import Liveness
from upscale.flow.relations import Kept, Line
from upscale.names import Parameter


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
