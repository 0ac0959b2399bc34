"""Looking ahead: what is made only to be added lies as what it is added to."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.liveness import Liveness
from upscale.flow.relations import GRID, Line, Pass, Reduce, Relation, Select
from upscale.names import Parameter
from upscale.planning.layouts import Layouts
from upscale.planning.stretches import places


class Ahead:
    """Knows who reads each line, and what its channels are added to."""

    def __init__(self, flow: ChannelFlow, live: Liveness) -> None:
        self._flow, self._live = flow, live
        self._readers: dict[Line, list[Relation | None]] = defaultdict(list)
        self._parts: dict[Line, Select] = {}
        for step in flow.steps:
            if step.node not in live.steps or step.shape_only:
                continue
            read = set()
            for relation in step.relations:
                for line in relation.reads:
                    self._readers[line].append(relation)
                    read.add(line)
                if isinstance(relation, Select) and len(relation.reads) == 1:
                    self._parts[relation.out] = relation
            for value in step.reads if step.executed else ():
                for line in set(flow.lines.get(value, ())) - read:
                    self._readers[line].append(None)

    def order(self, line: Line, layout: Positions, layouts: Layouts) -> Positions:
        """A layout for a line, or the same channels in the order of what they are added to.

        A sum that was split adds a part of the line; then what is added comes first.
        """
        origin = np.arange(self._flow.sizes[line])
        while (relation := self._reader(line)) is not None:
            if isinstance(relation, Select):
                origin = np.where(relation.operand < 0, -1, origin[relation.position])
            elif isinstance(relation, Pass):
                wanted = np.flatnonzero(self._live.lines[relation.out])
                for other in self._tensors(relation, line):
                    met = self._met(other, wanted, layouts)
                    if met is not None:
                        return _first(origin[met], layout)
                if self._tensors(relation, line):
                    return layout
            line = relation.out
        return layout

    def _reader(self, line: Line) -> Pass | Select | Reduce | None:
        """What reads a line, if that is one thing, which leaves every channel by itself."""
        readers = self._readers[line]
        if line.axis == GRID or line in self._flow.blocks:
            return None
        if len(readers) == 2:
            # A split sum reads what is added, and then the rest.
            readers = [one for one in readers if isinstance(one, Select) and len(one.reads) == 1]
        if len(readers) != 1:
            return None
        (reader,) = readers
        if isinstance(reader, Select):
            return reader if len(reader.reads) == 1 else None
        if isinstance(reader, Pass):
            return reader
        return reader if isinstance(reader, Reduce) and reader.channelwise else None

    def _tensors(self, relation: Pass, line: Line) -> list[Line]:
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
