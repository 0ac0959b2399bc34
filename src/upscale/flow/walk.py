"""The walk: what a rule may ask about lines, and what it may say of them.

A *line* is an axis along which channels are told apart. The walk goes through the graph once, node
by node, and holds the lines of every value met so far; each position of a line belongs to a class,
and positions that must keep one order, because something combines them, share their class. A rule
adds the lines of what its operation makes, and the relations that hold between them.

Channels that lie along several axes at once, as the heads of attention do, are in `spread`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from upscale.capture import Call
from upscale.channels import Parameter, Positions
from upscale.flow import relations
from upscale.flow.channel_flow import Classes
from upscale.flow.lines import GRID, HeadGrid, Line
from upscale.flow.relations import Reduce, Relation

if TYPE_CHECKING:
    from upscale.flow.spread import Split


class Declined(Exception):
    """A rule will not vouch for a call; the message is the reason a user reads."""


class Unlined(Exception):
    """A node reduces, after other operations within it, an axis that is no line yet: its
    argument."""


class Walk:
    """The lines of every value met so far, and the relations of the node at hand.

    A block adds what a convolution makes to what it read: `sum = conv(x) + x`, of four channels.
    The convolution makes new channels. The sum ties each of them to the channel of `x` with its
    number: whoever prunes or reorders one has to do the same to the other.

    >>> walk = Walk({"x": (1, 4, 8, 8), "conv": (1, 4, 8, 8), "sum": (1, 4, 8, 8)})
    >>> x, conv, total = Line("x", 1), Line("conv", 1), Line("sum", 1)
    >>> walk.line(x), walk.line(conv)
    (None, None)
    >>> walk.known[x].tolist(), walk.known[conv].tolist()
    ([0, 1, 2, 3], [4, 5, 6, 7])
    >>> walk.ties(total, [conv, x])
    >>> [walk.classes.find(walk.known[line]).tolist() for line in (x, conv, total)]
    [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]

    A concatenation computes nothing: its channels are those it is given, and keep their classes.

    >>> walk = Walk({"x": (1, 2, 8, 8), "y": (1, 3, 8, 8), "cat": (1, 5, 8, 8)})
    >>> walk.selects(
    ...     Line("cat", 1), [Line("x", 1), Line("y", 1)],
    ...     operand=np.array([0, 0, 1, 1, 1]), position=np.array([0, 1, 0, 1, 2]),
    ... )
    >>> walk.known[Line("y", 1)].tolist()
    [2, 3, 4]
    >>> walk.known[Line("cat", 1)].tolist()
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        computed: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """Walk over values of these shapes; `computed` as a captured model has it."""
        self.classes = Classes()
        self.known: dict[Line, Positions] = {}
        self.splits: dict[str, Split] = {}
        self.grids: dict[Line, HeadGrid] = {}
        self.blocks: dict[Line, int] = {}
        self.loose: set[Line] = set()
        # What the report says of a node that needs some channels whole and yet has relations.
        self.note = ""
        self.relations: list[Relation] = []
        # What the operations of the node at hand made: all of them, and those before this one.
        self.made: set[str] = set()
        self.inner: set[str] = set()
        self._shapes, self._computed = shapes, computed or {}
        self._axes: dict[str, list[int]] = {}
        self._made_of: dict[str, set[Parameter]] = {}

    def begin(self) -> None:
        """Turn to another node."""
        self.relations, self.inner, self.made, self.note = [], set(), set(), ""

    def forget(self, values: set[str]) -> None:
        """Take back what was said of the node at hand."""
        self.relations = []
        for value in values:
            for axis in self._axes.pop(value, ()):
                for about in (self.known, self.grids, self.blocks):
                    about.pop(Line(value, axis), None)
                self.loose.discard(Line(value, axis))
            self.splits.pop(value, None)

    def derive(self, call: Call) -> None:
        """Remember which parameters a value is computed from, if it is from nothing else."""
        operands = call.reads
        owned: set[Parameter] = {value for value in operands if isinstance(value, Parameter)}
        owned.update(*(self._made_of.get(value, ()) for value in operands))
        if owned and all(isinstance(v, Parameter) or v in self._made_of for v in operands):
            self._made_of |= dict.fromkeys(call.outs, owned)

    def shape(self, value: str) -> tuple[int, ...]:
        """The shape of a value on the example."""
        return self._shapes[value]

    def lines(self, value: str) -> tuple[Line, ...]:
        """The lines of a value; channels that are spread over several axes lie along none."""
        return tuple(Line(value, axis) for axis in self._axes.get(value, ()) if axis != GRID)

    def lines_only_along(self, value: str, *axes: int) -> tuple[Line, ...]:
        """The lines of a value; declines if one lies along another axis than these."""
        lines = self.lines(value)
        if any(line.axis not in axes for line in lines):
            raise Declined("channels lie along an axis this operation works over")
        return lines

    def is_owned(self, value: str) -> bool:
        """Whether a value is a parameter, or computed from parameters and nothing else."""
        return isinstance(value, Parameter) or value in self._made_of

    def has_channels(self, value: str) -> bool:
        """Whether channels are told apart in a value, along one axis or several."""
        return bool(self._axes.get(value))

    def spread_alone(self, call: Call) -> str | None:
        """The one value that a call reads, if its channels are spread."""
        return call.reads[0] if len(call.reads) == 1 and call.reads[0] in self.splits else None

    def line(self, line: Line) -> None:
        """Tell channels apart along an axis where nobody did."""
        if line not in self.known:
            self._add(line, self.classes.fresh(self.shape(line.value)[line.axis]))

    def ties(self, out: Line, reads: Sequence[Line], *, whole: bool = False) -> None:
        """Position i of the result depends on position i of every line read, parameters too.

        A `whole` tie mixes all positions but treats them alike, as LayerNorm does.
        """
        if reads[0] in self.blocks:
            self.blocks[out] = self.blocks[reads[0]]
            if reads[0] in self.loose:
                self.loose.add(out)
        self._hold(relations.Pass(out, tuple(dict.fromkeys(reads)), whole))

    def absorbs(self, read: Line) -> None:
        """All positions are needed, in any order, and none is told apart after."""
        self._hold(relations.Absorb(read))

    def serves(self, by: Line, reads: Sequence[Line], blocks: int, *, makes: bool = False) -> None:
        """Blocks of the lines read serve the blocks of a line, and leave with them: heads.

        One that `makes` the line makes it of them, with a position for each block. Else it has to
        be said before what makes the line.
        """
        self._hold(relations.Serve(by, tuple(dict.fromkeys(reads)), blocks, makes))

    def folds(self, out: Line, read: Line, table: Positions, *, nested: bool) -> None:
        """Position i of the result depends on positions `table[i]` of the line read."""
        self._hold(relations.Fold(out, read, table, nested))

    def carries(self, out: Line, read: Line, position: Positions) -> None:
        """A line merges with neighbouring axes; `position` is the channel each feature is of."""
        outer, inner = _pattern(position, self.shape(read.value)[read.axis])
        self._hold(relations.Carry(out, read, outer, inner))

    def reduces(
        self,
        out: Line,
        read: Line,
        *,
        weight: str,
        row_axis: int,
        column_axis: int,
        groups: int,
        bias: Sequence[str],
    ) -> None:
        """A layer's weight contracts the line read; its rows make the result's line.

        A bias, if there is one, is cut where it is used; one made within cannot be reached.
        """
        if not self.made.isdisjoint(bias):
            raise Declined("its bias is computed within")
        if read not in self.known and read.value in self.inner:
            raise Unlined(read)
        layer = weight if isinstance(weight, Parameter) else self._layer_behind(weight)
        rows, columns = self.shape(weight)[row_axis], self.shape(weight)[column_axis]
        beside = tuple(Line(value, 0) for value in bias)
        self._hold(
            Reduce(out, read, layer, weight, row_axis, column_axis, columns, rows, groups, beside)
        )

    def selects(
        self,
        out: Line,
        reads: Sequence[Line],
        operand: Positions,
        position: Positions,
        *,
        joined: bool = False,
    ) -> None:
        """Position i of the result is position `position[i]` of `reads[operand[i]]`.

        Operand -1 is zero. Nothing is computed; one that is `joined` is written anew all the same.
        """
        if any(len(self.lines(line.value)) > 1 for line in reads):
            raise Declined("channels lie along more than one axis")
        for line in reads:
            self.line(line)
        self._hold(relations.Select(out, tuple(reads), operand, position, joined))

    def takes(self, out: Line, read: Line, position: Positions, *, joined: bool = False) -> None:
        """Position i of the result is position `position[i]` of one line, and nothing else."""
        flat = position.reshape(-1)
        self.selects(out, [read], np.zeros_like(flat), flat, joined=joined)

    def _layer_behind(self, weight: str) -> str:
        """The layer that computes this weight from what it stores; else the weight itself."""
        owned = [value.name for value in self._made_of.get(weight, ())]
        layers = [
            layer
            for layer, shape in self._computed.items()
            if shape == self.shape(weight) and all(n.startswith(f"{layer}.") for n in owned)
        ]
        return Parameter(f"{max(layers, key=len)}.weight") if owned and layers else weight

    def _hold(self, relation: Relation) -> None:
        """Note a relation, and the line that it makes."""
        classes, out = relation.tie(self.classes, self.known, ()), relation.out
        if out is not None:
            if classes is None:
                classes = self.classes.fresh(self.shape(out.value)[out.axis])
            self._add(out, classes)
        self.relations.append(relation)

    def _add(self, line: Line, classes: Positions) -> None:
        if line not in self.known:
            self._axes.setdefault(line.value, []).append(line.axis)
        self.known[line] = classes


def _pattern(position: Positions, size: int) -> tuple[int, int]:
    """How often a merged axis repeats all channels, and each of them: (outer, inner).

    Flattening two channels of three places each gives every channel three times:

    >>> _pattern(np.array([0, 0, 0, 1, 1, 1]), 2)
    (1, 3)
    """
    changes = np.flatnonzero(np.diff(position))
    inner = int(changes[0]) + 1 if len(changes) else len(position)
    outer = len(position) // (inner * size)
    expected = np.tile(np.repeat(np.arange(size), inner), outer)
    if not np.array_equal(position, expected):
        raise Declined("it interleaves channels with other axes")
    return outer, inner
