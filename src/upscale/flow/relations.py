"""Relations: how the lines of a node's result depend on the lines it reads. No torch.

A *line* is one axis of one value (a tensor) along which channels are told apart. Each of its
positions belongs to a *class*: positions that an elementwise operation combines share one, and
with it their place in any order. An axis that is no line is whole and in its own order.

There are seven relations, and each says of itself, once:

- `need`: which positions of what it reads are needed, given those needed of its result;
- `wants`: which positions it reads, and whether it needs them in their own order;
- `tie`: the classes of its result, given those of what it reads; `None` if they are its own;
- `moved`: where each position of its result is taken from, if it moves data and no more;
- `followed`: the same where each position follows one of a single line, computed with or not.

`cuts` are the axes of parameters that follow its result: rows and bias, scale and shift. One that
`mixes` makes each position of several; `needs_all` are the lines of which nothing can leave.

Take `y = conv(x); z = y + x` on 4 channels, of which a reader of `z` keeps 1 and 3. The sum is a
`Pass`: it needs 1 and 3 of `y` and of `x`, and ties `y[i]`, `x[i]` and `z[i]` into one class. The
convolution is a `Reduce`: of `x` it needs the columns that its selection keeps, whatever is needed
of `y`, and the classes of `y` are its own to order.

>>> x, y, z = Line("x", 1), Line("y", 1), Line("z", 1)
>>> live = {x: np.zeros(4, bool), y: np.zeros(4, bool), z: np.array([False, True, False, True])}
>>> Pass(z, (y, x)).need(live, {})
>>> live[y].tolist()
[False, True, False, True]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from upscale.channels import Flags, Parameter, Positions
from upscale.flow.lines import Line

if TYPE_CHECKING:
    from upscale.flow.channel_flow import Classes

Live = Mapping[Line, Flags]
Kept = Mapping[str, Positions]
Known = Mapping[Line, Positions]


class _Relates:
    """What holds of a relation unless it says otherwise."""

    __slots__ = ()
    cuts: tuple[Line, ...] = ()
    mixes: bool = False
    needs_all: tuple[Line, ...] = ()

    def _derive(self, **facts: object) -> None:
        """Note facts that follow from the others, once."""
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)

    def tie(self, classes: Classes, known: Known, apart: Collection[Line]) -> Positions | None:
        """It makes no line, or one whose classes are its own."""
        return None

    def moved(self, sizes: Mapping[Line, int]) -> tuple[Positions, Positions] | None:
        """It computes."""
        return None

    def reads_nothing(self, kept: Mapping[str, Positions]) -> bool:
        """Whether all that it contracts is pruned."""
        return False

    def followed(self, origin: Positions) -> Positions | None:
        """The origin of each position it makes, if each follows one of the line read."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _OfOneLine(_Relates):
    """A relation of a result with one line read."""

    out: Line
    read: Line
    reads: tuple[Line, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._derive(reads=(self.read,))


@dataclass(frozen=True, slots=True)
class Pass(_Relates):
    """Position i of the result depends on position i of every line read, parameters too.

    A `whole` pass mixes its positions but treats them alike (LayerNorm): all are needed, in
    any order.
    """

    out: Line
    reads: tuple[Line, ...]
    whole: bool = False
    cuts: tuple[Line, ...] = field(init=False, repr=False)
    mixes: bool = field(init=False, repr=False)
    needs_all: tuple[Line, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parameters = tuple(line for line in self.reads if isinstance(line.value, Parameter))
        needs_all = (self.out,) if self.whole else ()
        self._derive(cuts=parameters, mixes=self.whole, needs_all=needs_all)

    def followed(self, origin: Positions) -> Positions | None:
        """Every position stays where it is."""
        return origin

    def need(self, live: Live, kept: Kept) -> None:
        """What is needed of the result is needed of everything read."""
        needed = live[self.out]
        if self.whole and needed.any():
            needed[:] = True
        for line in self.reads:
            if line in live:
                np.logical_or(live[line], needed, out=live[line])

    def wants(self, index: int, live: Live, kept: Kept) -> tuple[Positions, bool]:
        """The same positions of every line."""
        return np.flatnonzero(live[self.out]), False

    def tie(self, classes: Classes, known: Known, apart: Collection[Line]) -> Positions | None:
        """Equal places are one class; but for lines that are read `apart`, in another order."""
        lines = [line for line in self.reads if line in known]
        tied = [known[line] for line in lines if line not in apart] or [known[x] for x in lines[:1]]
        for other in tied[1:]:
            classes.merge(tied[0], other)
        return tied[0] if tied else None


@dataclass(frozen=True, slots=True)
class Absorb(_Relates):
    """Every position of the line read is needed, in any order, and none is told apart after."""

    read: Line
    out: ClassVar[None] = None
    mixes: bool = field(init=False, repr=False)
    reads: tuple[Line, ...] = field(init=False, repr=False)
    needs_all: tuple[Line, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._derive(reads=(self.read,), needs_all=(self.read,), mixes=True)

    def need(self, live: Live, kept: Kept) -> None:
        """Everything."""
        live[self.read][:] = True

    def wants(self, index: int, live: Live, kept: Kept) -> tuple[Positions, bool]:
        """Everything."""
        return np.arange(len(live[self.read])), False


@dataclass(frozen=True, slots=True)
class Serve(_Relates):
    """Whole blocks of the lines read serve the blocks of a line, `by`: heads of attention.

    What is needed of a block of `by` needs its block of every line read, whole and in order.
    One that `makes` the line makes it of them: a line of heads, a position each.
    """

    by: Line
    reads: tuple[Line, ...]
    blocks: int
    makes: bool = False
    mixes: bool = field(default=True, init=False, repr=False)
    out: Line | None = field(init=False, repr=False)
    cuts: tuple[Line, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        parameters = tuple(line for line in self.reads if isinstance(line.value, Parameter))
        self._derive(out=self.by if self.makes else None, cuts=parameters)

    def _served(self, live: Live) -> Flags:
        return np.asarray(live[self.by].reshape(self.blocks, -1).any(axis=1))

    def need(self, live: Live, kept: Kept) -> None:
        """The blocks that serve what is needed."""
        for line in live.keys() & set(self.reads):
            live[line].reshape(self.blocks, -1)[self._served(live)] = True

    def blocks_read(self, live: Live, size: int) -> Positions:
        """The positions, of a line of this size, of all blocks that serve what is needed."""
        return np.flatnonzero(np.repeat(self._served(live), size // self.blocks))

    def wants(self, index: int, live: Live, kept: Kept) -> tuple[Positions, bool]:
        """The blocks that serve what is needed, in their order."""
        line = self.reads[index]
        return self.blocks_read(live, len(live[line]) if line in live else self.blocks), True


@dataclass(frozen=True, slots=True, eq=False)
class Fold(_OfOneLine):
    """Position i of the result depends on positions `table[i]` of the line read (GLU).

    The operation finds them by place: all first parts, then all second parts; or, `nested`,
    the parts of one position side by side.
    """

    table: Positions
    nested: bool

    def wanted(self, layout: Positions) -> Positions:
        """The positions to read, in order, for a result of the given layout."""
        rows = self.table[layout]
        return (rows if self.nested else rows.T).reshape(-1)

    def need(self, live: Live, kept: Kept) -> None:
        """All parts of what is needed."""
        live[self.read][self.table[live[self.out]].reshape(-1)] = True

    def wants(self, index: int, live: Live, kept: Kept) -> tuple[Positions, bool]:
        """All parts of what is needed."""
        return np.unique(self.table[np.flatnonzero(live[self.out])]), False

    def tie(self, classes: Classes, known: Known, apart: Collection[Line]) -> Positions | None:
        """The parts of one position are one class."""
        read = known[self.read]
        for part in range(1, self.table.shape[1]):
            classes.merge(read[self.table[:, 0]], read[self.table[:, part]])
        return read[self.table[:, 0]]


@dataclass(frozen=True, slots=True)
class Carry(_OfOneLine):
    """The line read merges with neighbouring axes (flatten): `outer` × channels × `inner`.

    Features are classes of their own, which follow their channels (`ChannelFlow.carried`).

    Two channels of 2 × 1 pixels become four features: 0 and 1 are of channel 0, 2 and 3 of 1.

    >>> flat = Carry(Line("flat", 1), Line("x", 1), outer=1, inner=2)
    >>> flat.channel(np.arange(4), 2).tolist(), flat.features(np.array([1]), 2).tolist()
    ([0, 0, 1, 1], [2, 3])
    """

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

    def need(self, live: Live, kept: Kept) -> None:
        """The channels that needed features are part of."""
        channels = live[self.read]
        channels[self.channel(np.flatnonzero(live[self.out]), len(channels))] = True

    def wants(self, index: int, live: Live, kept: Kept) -> tuple[Positions, bool]:
        """Every channel that is there: a reshape takes all of a tensor."""
        return np.flatnonzero(live[self.read]), False

    def moved(self, sizes: Mapping[Line, int]) -> tuple[Positions, Positions]:
        """A feature is taken from its channel."""
        features = np.arange(sizes[self.out])
        return np.zeros_like(features), self.channel(features, sizes[self.read])


@dataclass(frozen=True, slots=True, eq=False)
class Reduce(_OfOneLine):
    """A convolution or linear: columns contract the line read, rows make the result's line.

    With groups, column k of group g contracts position `g * columns + k`. `beside` are the
    lines that follow the rows: the bias. `layer` is the weight a selection speaks of; it is
    `weight` itself unless that is computed from it, and `name` its name. A `channelwise` one is
    depthwise: position i of the result sees position i alone.
    """

    layer: str
    weight: str
    row_axis: int
    column_axis: int
    columns: int
    rows: int
    groups: int
    beside: tuple[Line, ...]
    cuts: tuple[Line, ...] = field(init=False, repr=False)
    channelwise: bool = field(init=False, repr=False)
    mixes: bool = field(init=False, repr=False)
    name: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        name = self.layer.name if isinstance(self.layer, Parameter) else self.layer
        cuts = (Line(self.weight, self.row_axis), *self.beside)
        depthwise = self.groups > 1 and self.columns == 1 and self.rows == self.groups
        self._derive(
            reads=(self.read,), name=name, cuts=cuts, channelwise=depthwise, mixes=not depthwise
        )

    def columns_kept(self, kept: Kept) -> Positions:
        """The columns of its weight that a selection keeps."""
        return kept[self.layer] if self.layer in kept else np.arange(self.columns)

    def followed(self, origin: Positions) -> Positions | None:
        """A depthwise convolution leaves every position where it is."""
        return origin if self.channelwise else None

    def reads_nothing(self, kept: Kept) -> bool:
        """Whether all its columns are pruned."""
        return len(self.columns_kept(kept)) == 0

    def groups_kept(self, live: Flags) -> Positions:
        """The groups that make anything live."""
        return np.flatnonzero(live.reshape(self.groups, -1).any(axis=1))

    def need(self, live: Live, kept: Kept) -> None:
        """The columns kept, whatever rows are needed; of whole groups, if there are several."""
        rows = live[self.out]
        if self.groups > 1:
            rows.reshape(self.groups, -1)[self.groups_kept(rows)] = True
        if self.read in live and rows.any():
            live[self.read][self._contracted(rows, kept)] = True

    def wants(self, index: int, live: Live, kept: Kept) -> tuple[Positions, bool]:
        """The columns kept; groups are told apart by place, so they stay in their order."""
        columns, rows = self.columns_kept(kept), live[self.out]
        if self.channelwise:
            return (np.flatnonzero(rows) if len(columns) else columns), False
        return self._contracted(rows, kept), self.groups > 1

    def _contracted(self, rows: Flags, kept: Kept) -> Positions:
        """The positions read that the columns kept of all groups which make anything contract."""
        columns = self.columns_kept(kept)
        if self.groups == 1:
            return columns
        return (self.groups_kept(rows)[:, None] * self.columns + columns).reshape(-1)

    def tie(self, classes: Classes, known: Known, apart: Collection[Line]) -> Positions | None:
        """Rows are a layer's own to order, unless each follows its channel."""
        return known.get(self.read) if self.channelwise else None


@dataclass(frozen=True, slots=True, eq=False)
class Select(_Relates):
    """Position i of the result is position `position[i]` of `reads[operand[i]]`.

    Operand -1 is zero. Nothing runs for a select: its readers fetch what they want from where
    it lies. A `joined` one writes its result anew in the unpruned model (a concatenation).
    `borrowed` positions read a channel for the number it holds, and are of another class.
    """

    out: Line
    reads: tuple[Line, ...]
    operand: Positions
    position: Positions
    joined: bool = False
    borrowed: Flags | None = None

    def need(self, live: Live, kept: Kept) -> None:
        """What the needed positions are taken from."""
        needed = np.flatnonzero(live[self.out])
        for index, line in enumerate(self.reads):
            live[line][self.position[needed[self.operand[needed] == index]]] = True

    def wants(self, index: int, live: Live, kept: Kept) -> tuple[Positions, bool]:
        """What the needed positions are taken from."""
        needed = np.flatnonzero(live[self.out])
        return np.unique(self.position[needed[self.operand[needed] == index]]), False

    def followed(self, origin: Positions) -> Positions | None:
        """A part of one line: its positions follow those they are taken from."""
        if len(self.reads) > 1:
            return None
        return np.where(self.operand < 0, -1, origin[self.position])

    def moved(self, sizes: Mapping[Line, int]) -> tuple[Positions, Positions] | None:
        """By operand and position; operand -1 is zero."""
        return self.operand, self.position

    def tie(self, classes: Classes, known: Known, apart: Collection[Line]) -> Positions | None:
        """A position has the class of what it is taken from; zeros are classes of their own."""
        made = classes.fresh(len(self.operand))
        for index, line in enumerate(self.reads):
            mine = self.operand == index
            if self.borrowed is not None:
                mine &= ~self.borrowed
            if line in known:
                made[mine] = known[line][self.position[mine]]
        return made


Relation = Pass | Absorb | Serve | Fold | Carry | Reduce | Select
