"""Looking ahead: what is made only to be added lies as what it is added to."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.liveness import Liveness
from upscale.flow.relations import GRID, Line, Relation
from upscale.names import Parameter
from upscale.planning.layouts import Layouts
from upscale.planning.stretches import places


class Ahead:
    """Knows who reads each line, and what its channels are added to."""

    def __init__(self, flow: ChannelFlow, live: Liveness) -> None:
        self._flow, self._live = flow, live
        self._readers: dict[Line, list[Relation | None]] = defaultdict(list)
        self._parts = {part.out: part for _, part in flow.selects if len(part.reads) == 1}
        for step in flow.steps:
            if step.node not in live.steps or step.shape_only:
                continue
            read = set()
            for relation in step.relations:
                for line in relation.reads:
                    self._readers[line].append(relation)
                    read.add(line)
            for value in step.reads if step.executed else ():
                for line in set(flow.lines.get(value, ())) - read:
                    self._readers[line].append(None)

    def order(self, line: Line, layout: Positions, layouts: Layouts) -> Positions:
        """A layout for a line, or the same channels in the order of what they are added to.

        A sum that was split adds a part of the line; then what is added comes first.
        """
        origin = np.arange(self._flow.sizes[line])
        while (relation := self._reader(line)) is not None:
            followed = relation.followed(origin)
            if followed is None or relation.out is None:
                return layout
            others = self._others(relation, line)
            wanted = np.flatnonzero(self._live.lines[relation.out])
            for other in others:
                met = self._met(other, wanted, layouts)
                if met is not None:
                    return _first(origin[met], layout)
            if others:
                return layout
            line, origin = relation.out, followed
        return layout

    def _reader(self, line: Line) -> Relation | None:
        """What reads a line, if that is one thing."""
        readers = self._readers[line]
        if line.axis == GRID or line in self._flow.blocks:
            return None
        if len(readers) == 2:
            # A split sum reads what is added, and then the rest.
            readers = [each for each in readers if each is not None and each.out in self._parts]
        return readers[0] if len(readers) == 1 else None

    def _others(self, relation: Relation, line: Line) -> list[Line]:
        """The other tensors whose channels meet those of a line."""
        return [
            read
            for read in relation.reads
            if read != line and read in self._flow.classes and not isinstance(read.value, Parameter)
        ]

    def _met(self, line: Line, wanted: Positions, layouts: Layouts) -> Positions | None:
        """Wanted positions in the order in which they lie, if that is known yet.

        What the model itself puts together can be put together in any order.
        """
        there = wanted
        while not layouts.knows(line):
            if line not in self._parts:
                return None
            part = self._parts[line]
            nothing = (there < 0) | (part.operand[there] < 0)
            there = np.where(nothing, -1, part.position[there])
            (line,) = part.reads
        if layouts.joins(line):
            return None
        held = there >= 0
        arranged = layouts.arrange(line, np.unique(there[held]))
        place = np.full(len(there), len(arranged))
        place[held] = places(arranged, self._flow.sizes[line])[there[held]]
        return wanted[np.argsort(place, kind="stable")]


def _first(channels: Positions, layout: Positions) -> Positions:
    """A layout with the given channels first, as far as it has them; each once."""
    first = channels[np.isin(channels, layout)]
    if len(np.unique(first)) < len(first):
        return layout
    return np.concatenate((first, layout[~np.isin(layout, first)]))
