"""Units: the channels of layers that are chosen together: all go, or all stay. No torch.

Say `a` makes 4 channels that `b` and `c` read. Freely chosen, each column of `b` and each of `c`
is a unit of its own: 8 units. With the constraint `segment`, column 2 of `b` and column 2 of `c`
read channels of one class, and are one unit: 4 units of two columns each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.classes import Classes
from upscale.flow.relations import Line
from upscale.flow.segments import carried_classes, find_segments


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
        of = {weight: own for weight, own in self.of.items() if weight in weights}
        names = np.unique(np.concatenate([*of.values(), np.empty(0, dtype=np.int64)]))
        return Units({w: np.searchsorted(names, own) for w, own in of.items()}, len(names))

    def members(self) -> Positions:
        """How many channels each unit holds."""
        counts = np.zeros(self.count, dtype=np.int64)
        for units in self.of.values():
            counts += np.bincount(units, minlength=self.count)
        return counts


def find_units(
    flow: ChannelFlow, *, side: str, constraint: str = "none", single_branch: bool = False
) -> Units:
    """What can be pruned on a side of all layers, and what goes together.

    With the constraint `segment`, all readers of a channel (or all layers summed into it) prune
    it or none does. Layers that read the model's input keep all of it, and layers that make
    what has to stay whole, such as the model's output, all they make.
    """
    ends = dict(_ends(flow, side))
    if single_branch:
        alone = _single_branch(flow, side)
        ends = {weight: classes for weight, classes in ends.items() if weight in alone}
    joined = Classes()
    joined.fresh(flow.class_count)
    numbers = {weight: joined.fresh(classes.shape[1]) for weight, classes in ends.items()}
    if constraint == "segment":
        for weight, classes in ends.items():
            for use in classes:
                joined.merge(numbers[weight], use)
    roots = {weight: joined.find(own) for weight, own in numbers.items()}
    names = np.unique(np.concatenate([*roots.values(), np.empty(0, dtype=np.int64)]))
    return Units({w: np.searchsorted(names, own) for w, own in roots.items()}, len(names))


def _ends(flow: ChannelFlow, side: str) -> Iterator[tuple[str, Positions]]:
    """For each layer's weight, the classes that each of its channels touches, a row a use."""
    carried = carried_classes(flow)
    needed = _needed(flow, carried) if side == "output" else set()
    uses: dict[str, list[Positions]] = {}
    left_out: set[str] = set()
    for _, relation in flow.layers:
        if relation.channelwise:
            continue
        line = relation.read if side == "input" else relation.out
        if line not in flow.classes:
            left_out.add(relation.name)
            continue
        classes = flow.classes[line]
        if carried:
            classes = np.array([carried.get(c, c) for c in classes.tolist()])
        if needed.intersection(classes.tolist()):
            left_out.add(relation.name)
            continue
        size = relation.columns if side == "input" else len(classes)
        uses.setdefault(relation.name, []).append(classes.reshape(-1, size))
    for weight, touched in uses.items():
        if weight not in left_out:
            yield weight, np.concatenate(touched)


def _needed(flow: ChannelFlow, carried: Mapping[int, int]) -> set[int]:
    """Classes of channels that something needs whole: the model's output, a normalisation."""
    needed: set[int] = set()

    def need(line: Line) -> None:
        if line in flow.classes:
            needed.update(carried.get(c, c) for c in flow.classes[line].tolist())

    for step in flow.steps:
        covered: set[Line] = set()
        for relation in step.relations:
            covered.update(relation.reads)
            for line in relation.needs_all:
                need(line)
        if step.executed and not step.shape_only:
            for value in step.reads:
                for line in flow.lines.get(value, ()):
                    if line not in covered:
                        need(line)
    return needed


def _single_branch(flow: ChannelFlow, side: str) -> set[str]:
    segments = [segment for segment in find_segments(flow) if segment.single_branch]
    ends = [s.consumers if side == "input" else s.producers for s in segments]
    return {weight for names in ends for weight in names}
