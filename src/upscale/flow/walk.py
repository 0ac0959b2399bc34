"""The walk: what rules may ask about lines, and what they may say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from upscale.capture import Call, Captured, Ref
from upscale.channels import Positions
from upscale.flow import movement
from upscale.flow.classes import Classes
from upscale.flow.relations import (
    GRID,
    Absorb,
    Carry,
    Fold,
    Grid,
    Line,
    Pass,
    Reduce,
    Relation,
    Select,
)

ALONG_ONE_AXIS = {
    *("split", "split_with_sizes", "chunk", "tensor_split", "narrow", "slice", "roll", "flip"),
    *("select", "unbind", "stack", "cat", "concat", "index_select"),
}


class Declined(Exception):
    """A rule will not vouch for a call; the message is the reason a user reads."""


class Unlined(Exception):
    """A node reduces, after other operations within it, an axis that is no line yet."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self.line = line


class Walk:
    """The lines of every value met so far, and the relations of the node at hand."""

    def __init__(self, captured: Captured) -> None:
        self.classes = Classes()
        self.known: dict[Line, Positions] = {}
        self.splits: dict[str, movement.Split] = {}
        self.grids: dict[Line, Grid] = {}
        self.blocks: dict[Line, int] = {}
        self.note = ""
        self.relations: list[Relation] = []
        self.inner: set[str] = set()
        self.made: set[str] = set()
        self._captured = captured
        self._axes: dict[str, list[int]] = {}
        self._made_of: dict[str, set[str]] = {}

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
            self.splits.pop(value, None)

    def derive(self, call: Call) -> None:
        """Remember which parameters a value is computed from, if it is from nothing else."""
        operands = tensors(call)
        owned = {value for value in operands if value.startswith("@")}
        owned.update(*(self._made_of.get(value, ()) for value in operands))
        if owned and all(v.startswith("@") or v in self._made_of for v in operands):
            self._made_of |= dict.fromkeys(call.outs, owned)

    def shape(self, value: str) -> tuple[int, ...]:
        return self._captured.values[value].shape

    def lines(self, value: str) -> tuple[Line, ...]:
        return tuple(Line(value, axis) for axis in self._axes.get(value, ()) if axis != GRID)

    def ties(self, out: Line, reads: Sequence[Line], *, whole: bool = False) -> None:
        tracked = [self.known[line] for line in reads if line in self.known]
        own = tracked[0] if tracked else self.classes.fresh(self.shape(out.value)[out.axis])
        if reads[0] in self.blocks:
            self.blocks[out] = self.blocks[reads[0]]
        for other in tracked[1:]:
            self.classes.merge(own, other)
        self._add(out, own)
        self.relations.append(Pass(out, tuple(dict.fromkeys(reads)), whole))

    def absorbs(self, read: Line) -> None:
        self.relations.append(Absorb(read))

    def folds(self, out: Line, read: Line, table: Positions, *, nested: bool) -> None:
        own = self.known[read]
        for part in range(1, table.shape[1]):
            self.classes.merge(own[table[:, 0]], own[table[:, part]])
        self._add(out, own[table[:, 0]])
        self.relations.append(Fold(out, read, table, nested))

    def reduces(
        self,
        out: Line,
        read: Line,
        *,
        weight: str,
        row_axis: int,
        column_axis: int,
        groups: int,
        bias: str | None,
    ) -> None:
        rows, columns = self.shape(weight)[row_axis], self.shape(weight)[column_axis]
        beside = () if bias is None else (Line(bias, 0),)
        if read not in self.known and read.value in self.inner:
            raise Unlined(read)
        layer = weight if weight.startswith("@") else self._layer_behind(weight)
        relation = Reduce(
            out, read, layer, weight, row_axis, column_axis, columns, rows, groups, beside
        )
        tied = relation.channelwise and read in self.known
        self._add(out, self.known[read] if tied else self.classes.fresh(rows))
        self.relations.append(relation)

    def _layer_behind(self, weight: str) -> str:
        """The layer that computes this weight from what it stores; else the weight itself."""
        owned = [name[1:] for name in self._made_of.get(weight, ())]
        found = [
            layer
            for layer, shape in self._captured.computed.items()
            if shape == self.shape(weight) and all(n.startswith(f"{layer}.") for n in owned)
        ]
        return f"@{max(found, key=len)}.weight" if owned and found else weight

    def selects(
        self,
        out: Line,
        reads: Sequence[Line],
        operand: Positions,
        position: Positions,
        *,
        joined: bool = False,
    ) -> None:
        if any(len(self.lines(line.value)) > 1 for line in reads):
            raise Declined("channels lie along more than one axis")
        own = self.classes.fresh(len(operand))
        for index, line in enumerate(reads):
            self.line(line)
            mine = operand == index
            own[mine] = self.known[line][position[mine]]
        self._add(out, own)
        self.relations.append(Select(out, tuple(reads), operand, position, joined))

    def moves(self, call: Call) -> None:
        operands = tensors(call)
        lined = [line for value in dict.fromkeys(operands) for line in self.lines(value)]
        if call.op in ALONG_ONE_AXIS:
            self._moves_along(call, operands, lined)
            return
        for line in lined:
            shape = self.shape(line.value)
            results = movement.numbers_after(call, line.value, shape, line.axis)
            for out, numbers in zip(call.outs, results, strict=True):
                self._moved(call, line, out, numbers)

    def _moves_along(self, call: Call, operands: list[str], lined: list[Line]) -> None:
        rank = len(self.shape(operands[0]))
        dims = call.argument("dims") if call.op in ("roll", "flip") else call.argument("dim")
        if dims in ([], None):
            raise Declined(f"{call.op} over all axes at once")
        grows = call.op == "stack"
        touched = {d % (rank + grows) for d in ([dims] if isinstance(dims, int) else dims)}
        along = [line for line in lined if line.axis in touched and not grows]
        if not along:
            for axis in sorted({line.axis for line in lined}):
                reads = [Line(value, axis) for value in dict.fromkeys(operands)]
                shift = self._shift(call.op, axis, min(touched))
                for out in call.outs:
                    self.ties(Line(out, axis + shift), reads)
        elif call.op in ("cat", "concat"):
            (axis,) = touched
            reads = [Line(value, axis) for value in operands]
            sizes = [self.shape(value)[axis] for value in operands]
            operand = np.repeat(np.arange(len(reads)), sizes)
            position = np.concatenate([np.arange(size) for size in sizes])
            self.selects(Line(call.outs[0], axis), reads, operand, position, joined=True)
        elif call.op in ("select", "unbind", "index_select"):
            raise Declined(f"{call.op} picks single channels by number")
        else:
            (line,) = along
            narrow = [1] * rank
            narrow[line.axis] = self.shape(line.value)[line.axis]
            results = movement.numbers_after(call, line.value, tuple(narrow), line.axis)
            for out, numbers in zip(call.outs, results, strict=True):
                position = numbers.reshape(-1)
                self.selects(Line(out, line.axis), [line], np.zeros_like(position), position)

    @staticmethod
    def _shift(operation: str, axis: int, touched: int) -> int:
        """How far an axis moves when another one is added or removed."""
        if operation == "stack":
            return int(axis >= touched)
        return -int(operation in ("select", "unbind") and axis > touched)

    def _moved(self, call: Call, line: Line, out: str, numbers: Positions) -> None:
        size = self.shape(line.value)[line.axis]
        varying = [axis for axis, length in enumerate(numbers.shape) if length > 1]
        if size == 1:
            self.absorbs(line)
        elif len(varying) > 1:
            self._spread(call, line, out)
        elif not varying:
            raise Declined(f"{call.op} drops channels by number")
        else:
            position = numbers.reshape(-1)
            self._rearranged(call, line, Line(out, varying[0]), position, size)

    def _rearranged(
        self, call: Call, line: Line, out: Line, position: Positions, size: int
    ) -> None:
        # These count channels by groups or copies: nothing of the kind runs on fewer of them.
        if call.op in ("repeat", "tile", "channel_shuffle", "native_channel_shuffle"):
            joined = "shuffle" not in call.op
            self.selects(out, [line], np.zeros_like(position), position, joined=joined)
            return
        if np.array_equal(position, np.arange(size)):
            self.ties(out, [line])
            return
        if out.axis == 0 < line.axis:
            raise Declined("it merges channels with the batch")
        outer, inner = _pattern(position, size)
        self._add(out, self.classes.fresh(len(position)))
        self.relations.append(Carry(out, line, outer, inner))

    def _spread(self, call: Call, line: Line, out: str) -> None:
        found = None
        if call.op in movement.RESHAPING and len(self.lines(line.value)) == 1:
            found = movement.split(line, self.shape(line.value), self.shape(out))
        if found is None:
            raise Declined(f"{call.op} spreads channels over several axes")
        self._selects_grid(out, found)

    def _selects_grid(self, out: str, split: movement.Split) -> None:
        position = split.positions.reshape(-1)
        line = Line(out, GRID)
        self.selects(line, [split.root], np.zeros_like(position), position)
        self.splits[out], self.grids[line] = split, split.grid

    def spreads(self, out: str, read: str, axes: tuple[int | None, ...]) -> None:
        """Say that a computed value has its channels spread as a value it reads has."""
        sizes = self.splits[read].grid.sizes
        if 0 in sizes:
            raise Declined("it has no channels")
        line, grid = Line(out, GRID), Grid(axes, sizes)
        self.ties(line, [Line(read, GRID)])
        positions = np.arange(int(np.prod(sizes))).reshape(sizes)
        self.splits[out] = movement.Split(line, grid, positions)
        self.grids[line], self.blocks[line] = grid, grid.blocks

    def move_split(self, call: Call, value: str) -> None:
        """A value whose channels are spread is moved on, or its spread axes are merged."""
        given = self.splits[value]
        computed = given.root == Line(value, GRID)
        if call.op in movement.PERMUTING:
            self._permute_split(call, value, given, computed)
        elif call.op in movement.RESHAPING or call.op == "squeeze":
            self._merge_split(call, value, given, computed)
        elif call.op in ("select", "unbind", "chunk", "split", "slice", "narrow") and not computed:
            found = movement.picked(call, value, given)
            if found is None:
                raise Declined(f"{call.op} cuts channels that are spread over several axes")
            for out, split in zip(call.outs, found, strict=True):
                self._selects_grid(out, split)
        else:
            raise Declined("its channels are spread over several axes")

    def _permute_split(self, call: Call, value: str, given: movement.Split, computed: bool) -> None:
        after = movement.permuted(call, value, given)
        if not computed:
            self._selects_grid(call.outs[0], after)
        elif np.array_equal(after.positions, given.positions):
            self.spreads(call.outs[0], value, after.grid.axes)
        else:
            raise Declined(f"{call.op} exchanges axes that channels are spread over")

    def _merge_split(self, call: Call, value: str, given: movement.Split, computed: bool) -> None:
        axis = movement.merged(given, self.shape(value), self.shape(call.outs[0]))
        if axis is None:
            self._regroup_split(call, value, given, computed)
            return
        out = Line(call.outs[0], axis)
        if computed:
            self.ties(out, [given.root])
            self.blocks[out] = given.grid.blocks
        elif axis == given.root.axis and self._rest_in_order(given):
            position = given.positions.reshape(-1)
            self.selects(out, [given.root], np.zeros_like(position), position)
        else:
            raise Declined("its channels come to lie along another axis")

    def _regroup_split(self, call: Call, value: str, given: movement.Split, computed: bool) -> None:
        shape, out = self.shape(value), self.shape(call.outs[0])
        found = None if computed else movement.regrouped(given, shape, out)
        if found is None:
            raise Declined("its channels are spread over several axes")
        self._selects_grid(call.outs[0], found)

    @staticmethod
    def _rest_in_order(given: movement.Split) -> bool:
        rest = [axis for axis in given.grid.axes if axis is not None]
        return rest == sorted(rest)

    def line(self, line: Line) -> None:
        """Make a line of an axis in its own order, if it is none yet."""
        if line not in self.known:
            self._add(line, self.classes.fresh(self.shape(line.value)[line.axis]))

    def _add(self, line: Line, classes: Positions) -> None:
        if line not in self.known:
            self._axes.setdefault(line.value, []).append(line.axis)
        self.known[line] = classes


def _pattern(position: Positions, size: int) -> tuple[int, int]:
    """How often a merged axis repeats all channels, and each of them: (outer, inner)."""
    changes = np.flatnonzero(np.diff(position))
    inner = int(changes[0]) + 1 if len(changes) else len(position)
    outer = len(position) // (inner * size)
    expected = np.tile(np.repeat(np.arange(size), inner), outer)
    if not np.array_equal(position, expected):
        raise Declined("it interleaves channels with other axes")
    return outer, inner


def tensors(call: Call) -> list[str]:
    """The values a call reads, in order."""
    found: list[str] = []

    def collect(item: Any) -> None:
        if isinstance(item, Ref):
            found.append(item.value)
        elif isinstance(item, (list, tuple)):
            for inner in item:
                collect(inner)

    for argument in (*call.args, *call.kwargs.values()):
        collect(argument)
    return found
