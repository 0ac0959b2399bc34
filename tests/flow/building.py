"""Flows of a few nodes, made by hand: no model, no capture, no torch.

All hand-made flows go through here, so that another signature of a step or a relation means
changing one place. A value has one line of channels, its second axis; a layer's columns are
named by the layer, as in `{"b": [0, 2]}`.

    net = Building()
    net.layer("a", "image", 4)
    net.layer("b", "a", 2)
    net.returns("b")
    net.live({"b": [0, 2]})["a"]      # [0, 2]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from upscale.channels import Flags, Parameter, Positions, positions
from upscale.flow.channel_flow import ChannelFlow, Classes, Step
from upscale.flow.lines import Line
from upscale.flow.liveness import Liveness, find_live
from upscale.flow.relations import Carry, Fold, Pass, Reduce, Relation, Select

IMAGE = "image"  # what a model is given: its channels are no line
Columns = Mapping[str, Sequence[int]]


def line(value: str) -> Line:
    """The channels of a value."""
    return Line(value, 1)


def weight(layer: str) -> str:
    """The name of a layer's weight."""
    return Parameter(f"{layer}.weight")


def kept(columns: Columns) -> dict[str, Positions]:
    """Which columns layers keep, as stages want to be told."""
    return {weight(layer): positions(own) for layer, own in columns.items()}


def flags(size: int, where: Sequence[int]) -> Flags:
    """True at the positions given."""
    return np.isin(np.arange(size), where)


class Building:
    """A flow that grows node by node; each node makes one value, which has its name."""

    def __init__(self, pixels: int = 16) -> None:
        self._steps: list[Step] = []
        self._classes, self._of = Classes(), dict[Line, Positions]()
        self._shapes: dict[str, tuple[int, ...]] = {IMAGE: (1, 3, pixels, 1)}
        self._pixels = pixels

    def layer(
        self, name: str, read: str, rows: int, *, groups: int = 1, shares: str | None = None
    ) -> None:
        """A convolution by single pixels, with a bias; or one that `shares` another's weight."""
        own = weight(shares or name)
        columns, bias = self._shapes[read][1] // groups, Parameter(f"{shares or name}.bias")
        self._shapes |= {own: (rows, columns, 1, 1), bias: (rows,)}
        reduce = Reduce(
            out=line(name),
            read=line(read),
            layer=own,
            weight=own,
            row_axis=0,
            column_axis=1,
            columns=columns,
            rows=rows,
            groups=groups,
            beside=(Line(bias, 0),),
        )
        channels = self._of[line(read)] if reduce.channelwise else self._classes.fresh(rows)
        self._add(name, (read, own, bias), reduce, channels)

    def depthwise(self, name: str, read: str) -> None:
        """A convolution of each channel by itself."""
        self.layer(name, read, self._shapes[read][1], groups=self._shapes[read][1])

    def elementwise(self, name: str, *reads: str, whole: bool = False) -> None:
        """An operation on equal positions of its operands: a sum, or with one an activation."""
        first, *others = (self._of[line(read)] for read in reads)
        for other in others:
            self._classes.merge(first, other)
        self._add(name, reads, Pass(line(name), tuple(map(line, reads)), whole), first)

    def join(self, name: str, *reads: str) -> None:
        """A concatenation."""
        sizes = [self._shapes[read][1] for read in reads]
        operand = np.repeat(np.arange(len(reads)), sizes)
        position = np.concatenate([np.arange(size) for size in sizes])
        select = Select(line(name), tuple(map(line, reads)), operand, position, joined=True)
        channels = np.concatenate([self._of[line(read)] for read in reads])
        self._add(name, reads, select, channels, executed=False)

    def pick(self, name: str, read: str, taken: Sequence[int]) -> None:
        """Some channels of a value, in the order given; -1 is zero."""
        position = positions(taken)
        select = Select(line(name), (line(read),), np.where(position < 0, -1, 0), position)
        channels = self._classes.fresh(len(taken))
        channels[position >= 0] = self._of[line(read)][position[position >= 0]]
        self._add(name, (read,), select, channels, executed=False)

    def halves(self, name: str, read: str) -> None:
        """A gated linear unit: position i is made of i of the first half and of the second."""
        half = self._shapes[read][1] // 2
        table = np.stack((np.arange(half), np.arange(half) + half), axis=1)
        channels = self._of[line(read)]
        self._classes.merge(channels[:half], channels[half:])
        self._add(name, (read,), Fold(line(name), line(read), table, nested=False), channels[:half])

    def flatten(self, name: str, read: str) -> None:
        """Channels and pixels become features, the pixels of one channel side by side."""
        size = self._shapes[read][1] * self._pixels
        carry = Carry(line(name), line(read), outer=1, inner=self._pixels)
        self._add(name, (read,), carry, self._classes.fresh(size), extent=())

    def squeeze(self, name: str, read: str) -> None:
        """The mean over pixels: one number for each channel."""
        relation = Pass(line(name), (line(read),))
        self._add(name, (read,), relation, self._of[line(read)], extent=(1, 1))

    def returns(self, *reads: str) -> None:
        """What the caller gets: all of it, in its own order."""
        self._steps.append(Step("output", reads, (), (), executed=True))

    def flow(self) -> ChannelFlow:
        """The flow of all nodes so far."""
        return ChannelFlow(
            steps=tuple(self._steps),
            classes={own: self._classes.find(found) for own, found in self._of.items()},
            grids={},
            blocks={},
            shapes=self._shapes,
            nbytes={value: 4 * int(np.prod(shape)) for value, shape in self._shapes.items()},
        )

    def liveness(self, columns: Columns) -> Liveness:
        """What is needed if layers keep only these columns."""
        return find_live(self.flow(), kept(columns))

    def live(self, columns: Columns) -> dict[str, list[int]]:
        """The channels needed of every value, if layers keep only these columns."""
        return live_of(self.liveness(columns))

    def in_blocks(self, value: str, count: int) -> ChannelFlow:
        """The flow, where a value needs equally many channels in each of so many blocks."""
        return replace(self.flow(), blocks={line(value): count})

    def _add(
        self,
        name: str,
        reads: tuple[str, ...],
        relation: Relation,
        channels: Positions,
        *,
        executed: bool = True,
        extent: tuple[int, ...] | None = None,
    ) -> None:
        space = self._shapes[reads[0]][2:] if extent is None else extent
        self._shapes[name] = (1, len(channels), *space)
        self._of[line(name)] = channels
        self._steps.append(Step(name, reads, (name,), (relation,), executed=executed))


def live_of(live: Liveness) -> dict[str, list[int]]:
    """The channels needed of every value."""
    return {own.value: np.flatnonzero(found).tolist() for own, found in live.lines.items()}


def stream(readers: int, channels: int = 4) -> Building:
    """A layer `stem` and so many that read it, `a`, `b` and on, whose results are returned."""
    net, names = Building(), [chr(ord("a") + number) for number in range(readers)]
    net.layer("stem", IMAGE, channels)
    for name in names:
        net.layer(name, "stem", 2)
    net.returns(*names)
    return net


def residual() -> Building:
    """`head(stem + inner(stem))`, on four channels."""
    net = Building()
    net.layer("stem", IMAGE, 4)
    net.layer("inner", "stem", 4)
    net.elementwise("sum", "inner", "stem")
    net.layer("head", "sum", 2)
    net.returns("head")
    return net
