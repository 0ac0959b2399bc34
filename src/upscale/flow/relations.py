"""The algebra of channel flow: lines, how they relate, and what freezes. No torch.

A *line* is one axis of one value (a tensor) along which channels are told apart. Each of its
positions belongs to a class: positions that an elementwise operation combines share one, and
with it their place in any order. Relations say how the lines of a node's result depend on the
lines it reads; an axis that is no line is whole and in its own order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from upscale.channels import Positions

GRID = -1


class Line(NamedTuple):
    """One axis of one value; or, with axis `GRID`, several axes that carry channels together."""

    value: str
    axis: int


@dataclass(frozen=True, slots=True)
class Grid:
    """How a line is spread over several axes of its value: attention heads and their width.

    `axes` tells for each axis of the value which axis of the flat tensor it is, `None` for
    those the channels are spread over, whose sizes are `sizes`.
    """

    axes: tuple[int | None, ...]
    sizes: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """How many blocks must keep equally many channels for the grid to stay one."""
        return int(np.prod(self.sizes[:-1]))


@dataclass(frozen=True, slots=True)
class Pass:
    """Position i of the result depends on position i of every line read, parameters too.

    A `whole` pass mixes its positions but treats them alike (LayerNorm): all are needed, in
    any order.
    """

    out: Line
    reads: tuple[Line, ...]
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Absorb:
    """Every position of the line read is needed, in any order, and none is told apart after."""

    read: Line


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Position i of the result depends on positions `table[i]` of the line read (GLU).

    The operation finds them by place: all first parts, then all second parts; or, `nested`,
    the parts of one position side by side.
    """

    out: Line
    read: Line
    table: Positions
    nested: bool

    def wanted(self, layout: Positions) -> Positions:
        """The positions to read, in order, for a result of the given layout."""
        rows = self.table[layout]
        return (rows if self.nested else rows.T).reshape(-1)


@dataclass(frozen=True, slots=True)
class Carry:
    """The line read merges with neighbouring axes (flatten): `outer` × channels × `inner`."""

    out: Line
    read: Line
    outer: int
    inner: int

    def channel(self, features: Positions, size: int) -> Positions:
        """The channel, of `size`, that each feature is part of."""
        return features // self.inner % size

    def features(self, channels: Positions, size: int) -> Positions:
        """The features of the given channels, in the order the operation leaves them."""
        outer = np.arange(self.outer)[:, None, None] * (size * self.inner)
        inner = np.arange(self.inner)[None, None, :]
        return (outer + channels[None, :, None] * self.inner + inner).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """A convolution or linear: columns contract the line read, rows make the result's line.

    With groups, column k of group g contracts position `g * columns + k`. `beside` are the
    lines that follow the rows: the bias. `layer` is the weight a selection speaks of; it is
    `weight` itself unless that is computed from it.
    """

    out: Line
    read: Line
    layer: str
    weight: str
    row_axis: int
    column_axis: int
    columns: int
    rows: int
    groups: int
    beside: tuple[Line, ...]

    @property
    def channelwise(self) -> bool:
        """A depthwise convolution: position i of the result sees position i alone."""
        return self.groups > 1 and self.columns == 1 and self.rows == self.groups


@dataclass(frozen=True, slots=True, eq=False)
class Select:
    """Position i of the result is position `position[i]` of `reads[operand[i]]`.

    Operand -1 is zero. Nothing runs for a select: its readers fetch what they want from where
    it lies. A `joined` one writes its result anew in the unpruned model (a concatenation).
    """

    out: Line
    reads: tuple[Line, ...]
    operand: Positions
    position: Positions
    joined: bool = False


Relation = Pass | Absorb | Fold | Carry | Reduce | Select


def relation_reads(relation: Relation) -> tuple[Line, ...]:
    """The lines a relation reads."""
    return relation.reads if isinstance(relation, (Pass, Select)) else (relation.read,)


@dataclass(frozen=True, slots=True)
class Frozen:
    """Why something stays whole: the layer or node, the operation, the reason, the source."""

    layer: str
    operation: str
    because: str
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one node of the graph does to lines.

    `reads` are the values it is given, `makes` those it returns. An executed step runs in the
    exported model; the others (selects, aliases) are looked through. `module` is the module a
    node calls. `resize` names the lines whose size stands among a reshape's arguments. A step
    that `keeps` writes what later calls read: it runs whoever wants its result.
    """

    node: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    relations: tuple[Relation, ...]
    executed: bool
    module: str | None = None
    frozen: Frozen | None = None
    resize: tuple[Line, ...] = ()
    shape_only: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class ChannelFlow:
    """How channels run through a captured model.

    `grids` are lines spread over several axes; `blocks` those lines whose tensors need equally
    many channels in each of that many blocks; `nbytes` what values weigh on the example.
    """

    steps: tuple[Step, ...]
    classes: Mapping[Line, Positions]
    grids: Mapping[Line, Grid]
    blocks: Mapping[Line, int]
    shapes: Mapping[str, tuple[int, ...]]
    nbytes: Mapping[str, int]
    _lines: Mapping[str, tuple[Line, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        lines: dict[str, list[Line]] = defaultdict(list)
        for line in sorted(self.classes):
            lines[line.value].append(line)
        known = {value: tuple(own) for value, own in lines.items()}
        object.__setattr__(self, "_lines", known)

    def size(self, line: Line) -> int:
        """How many positions a line has in the unpruned model."""
        known = self.classes.get(line)
        return self.shapes[line.value][line.axis] if known is None else len(known)

    def lines_of(self, value: str) -> tuple[Line, ...]:
        """The lines of a value."""
        return self._lines.get(value, ())

    @property
    def class_count(self) -> int:
        """A number above that of every class."""
        return 1 + max((int(c.max()) for c in self.classes.values() if len(c)), default=0)


class Classes:
    """Classes of positions under merging: a union-find that works on whole lines at once.

    >>> classes = Classes()
    >>> a, b = classes.fresh(2), classes.fresh(2)
    >>> classes.merge(a, b)
    >>> classes.find(b).tolist()
    [0, 1]
    """

    def __init__(self) -> None:
        self._parent = np.arange(1024)
        self._count = 0

    def fresh(self, size: int) -> Positions:
        """Classes nobody has yet, one for each of `size` positions."""
        start, self._count = self._count, self._count + size
        while self._count > len(self._parent):
            self._parent = np.concatenate(
                (self._parent, np.arange(len(self._parent), 2 * len(self._parent)))
            )
        return np.arange(start, self._count)

    def find(self, classes: Positions) -> Positions:
        """The representative of each class: its smallest member."""
        roots = self._parent[classes]
        while (higher := self._parent[roots]) is not None and (higher != roots).any():
            roots = higher
        self._parent[classes] = roots
        return roots

    def merge(self, one: Positions, other: Positions) -> None:
        """Make positions that meet members of one class."""
        a, b = self.find(one), self.find(other)
        low, high = np.minimum(a, b)[a != b], np.maximum(a, b)[a != b]
        while len(high):
            # Where several pairs give one class a parent, the last wins; the rest go again.
            self._parent[high] = low
            again = self._parent[high] != low
            a, b = self.find(low[again]), self.find(high[again])
            low, high = np.minimum(a, b)[a != b], np.maximum(a, b)[a != b]
