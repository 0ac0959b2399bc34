"""Units: the channels of layers that are chosen together: all go, or all stay. No torch.

Say `a` makes 4 channels that `b` and `c` read. Freely chosen, each column of `b` and each of `c`
is a unit of its own: 8 units. With the constraint `segment`, column 2 of `b` and column 2 of `c`
read channels of one class, and are one unit: 4 units of two columns each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from upscale.channels import Positions, positions
from upscale.flow.channel_flow import ChannelFlow, Classes
from upscale.flow.lines import Line
from upscale.flow.segments import find_segments


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Which channels are pruned together: for each weight, the unit of each of its channels.

    >>> units = Units({"b": np.array([0, 1]), "c": np.array([1, 2])}, 3)
    >>> units.members().tolist()
    [1, 2, 1]
    """

    of: Mapping[str, Positions]
    count: int

    def only(self, weights: frozenset[str]) -> Units:
        """The units of some weights alone."""
        return _numbered({weight: own for weight, own in self.of.items() if weight in weights})

    def members(self) -> Positions:
        """How many channels each unit holds."""
        return np.bincount(_joined(self.of), minlength=self.count)


def find_units(
    flow: ChannelFlow, *, side: str, constraint: str = "none", single_branch: bool = False
) -> Units:
    """What can be pruned on a side of all layers, and what goes together.

    With the constraint `heads`, the columns that a head of attention feeds go together; all else is
    free. With `segment`, all readers of a channel (or all layers summed into it) prune
    it or none does. Layers that read the model's input keep all of it, and layers that make
    what has to stay whole, such as the model's output, all they make.
    """
    ends = _ends(flow, side)
    if single_branch:
        segments = [segment for segment in find_segments(flow) if segment.single_branch]
        alone = {w for s in segments for w in (s.consumers if side == "input" else s.producers)}
        ends = {weight: classes for weight, classes in ends.items() if weight in alone}
    joined = Classes()
    joined.fresh(flow.class_count)
    numbers = {weight: joined.fresh(classes.shape[1]) for weight, classes in ends.items()}
    if constraint == "heads" and side == "input":
        for weight, own in _heads(flow).items():
            if weight in numbers:
                joined.merge(numbers[weight][own], numbers[weight])
    if constraint == "segment":
        for weight, classes in ends.items():
            for use in classes:
                joined.merge(numbers[weight], use)
    return _numbered({weight: joined.find(own) for weight, own in numbers.items()})


def _heads(flow: ChannelFlow) -> dict[str, Positions]:
    """For layers that read heads which can leave, the first column of the head of each column."""
    heads = {}
    for _, relation in flow.layers:
        if relation.read in flow.loose:
            width = relation.columns // flow.blocks[relation.read]
            heads[relation.name] = np.arange(relation.columns) // width * width
    return heads


def _joined(of: Mapping[str, Positions]) -> Positions:
    return np.concatenate([*of.values(), positions(())])


def _numbered(of: Mapping[str, Positions]) -> Units:
    """Units of any numbers, numbered from 0 without gaps."""
    names = np.unique(_joined(of))
    return Units({w: np.searchsorted(names, own) for w, own in of.items()}, len(names))


def _ends(flow: ChannelFlow, side: str) -> dict[str, Positions]:
    """For each layer's weight, the classes that each of its channels touches, a row a use."""
    carried = flow.carried
    needed = _needed(flow, carried) if side == "output" else set()
    uses: dict[str, list[Positions]] = defaultdict(list)
    left_out: set[str] = set()
    for _, relation in flow.layers:
        if relation.channelwise:
            continue
        line = relation.read if side == "input" else relation.out
        known = line in flow.classes
        classes = [carried.get(c, c) for c in flow.classes[line].tolist()] if known else []
        if not known or not needed.isdisjoint(classes):
            left_out.add(relation.name)
            continue
        size = relation.columns if side == "input" else len(classes)
        uses[relation.name].append(positions(classes).reshape(-1, size))
    return {weight: np.concatenate(own) for weight, own in uses.items() if weight not in left_out}


def _needed(flow: ChannelFlow, carried: Mapping[int, int]) -> set[int]:
    """Classes of channels that something needs whole: the model's output, a normalisation."""
    lines: set[Line] = set()
    for step in flow.steps:
        lines.update(line for relation in step.relations for line in relation.needs_all)
        if step.executed and not step.shape_only:
            read = {line for value in step.reads for line in flow.lines.get(value, ())}
            lines |= read.difference(*(relation.reads for relation in step.relations))
    known = [flow.classes[line].tolist() for line in lines & flow.classes.keys()]
    return {carried.get(c, c) for classes in known for c in classes}
