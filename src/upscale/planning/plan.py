"""The plan: everything the rewrite will do, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from upscale.errors import PlanError
from upscale.flow.channel_flow import Frozen
from upscale.lowering.gates import Gating
from upscale.lowering.sums import Sum
from upscale.planning.json import read_json, write_json

VERSION = 3  # 1 had no digest, and 2 was never released


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of what an edge reads: a slice of one value, or a gather from it.

    A gather has zeros where an index is -1; one of `rows` treats the value as a matrix, which is
    faster where channels lie side by side. A piece of zeros takes from its value only the shape;
    a whole piece is all of it.
    """

    value: str
    start: int
    length: int
    indices: tuple[int, ...] | None = None
    zeros: bool = False
    whole: bool = False
    rows: bool = False

    @property
    def fills(self) -> bool:
        """Whether a gather puts zeros between the channels it copies."""
        return self.indices is not None and -1 in self.indices


@dataclass(frozen=True, slots=True)
class Spread:
    """What makes a grid of fetched channels: unflatten to sizes, then permute the axes."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizesRead:
    """A value whose shape the model asks for: where to ask, and the sizes it shall be told.

    `axes` gives for each axis the anchor's, `None` where the size is among `fixed`.
    """

    anchor: str
    axes: tuple[int | None, ...]
    fixed: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Edge:
    """How a node gets the channels it wants of a value: its pieces, in order.

    `channel_bytes` is what one channel of the value weighs, `spread` how to make a grid of
    what was fetched. A `joined` edge reads what the unpruned model concatenates too.
    """

    node: str
    value: str
    axis: int
    pieces: tuple[Piece, ...]
    channel_bytes: int
    spread: Spread | None = None
    joined: bool = False

    @property
    def kind(self) -> str:
        """`slice` (free), `gather`, `infill` (a gather with zeros between), `runs` of one value,
        or `concat` of what was joined."""
        if self.pieces[0].zeros:
            return "concat"
        if len(self.pieces) > 1:
            return "concat" if self.joined else "runs"
        if self.pieces[0].indices is None:
            return "slice"
        return "infill" if self.pieces[0].fills else "gather"

    @property
    def copied_bytes(self) -> int:
        """Bytes this edge gathers or copies by runs; what it concatenates is not among them."""
        if self.kind == "runs":
            return self.channel_bytes * sum(piece.length for piece in self.pieces)
        gathered = (piece.length for piece in self.pieces if piece.indices is not None)
        return self.channel_bytes * sum(gathered)

    @property
    def concatenated_bytes(self) -> int:
        """Bytes this edge writes in putting several values together."""
        joined = self.kind == "concat"
        return self.channel_bytes * sum(piece.length for piece in self.pieces) if joined else 0


@dataclass(frozen=True, slots=True)
class Folding:
    """Columns of a weight that always meet one number each, and need not be read for it.

    What they add goes `into` the weight of one of them that is read for all; if that is `None`,
    into the bias. If the layer pads, and there is none, every number must be zero.
    """

    columns: tuple[int, ...]
    into: int | None
    pads: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What an export will do. Plain data: no tensors, no modules.

    `edges` lists the reads that are not of a whole tensor, `joins` the concatenations that
    are built once for several readers, `cuts` the indices each parameter keeps along each axis
    it is cut along, `sizes` the new sizes in reshapes, `asked` the values whose shape is read,
    `groups` the new numbers of groups, `widths` the channels left in modules that work on each
    alone, `constants` the layers that read nothing and give their
    bias, `stayed` the weights whose pruned columns cannot leave and become zeros, `unreached`
    those no node reads, `gone` the nodes that do not run. `masks` are the output channels that
    are zero after modules, `zeroed` the indices along an axis at which parameters are zero for
    that, `held` the channels that are made zero at run time, `zeros` the rows of weights that
    make nothing but zeros and cannot leave, `folds` the columns that went because they always
    meet one number, `gated` those that went because they meet multiples of what a gate gives,
    which is read instead, with a weight of its own, `repeats` for each position of a value the
    one read instead, where several always hold the same number, `sums` the additions of parts
    of their operands.
    `order_cost` is what the orders leave apart, in bytes, and `lower_bound` what any would;
    `estimated_us` is how long the layers, elementwise operations and copies should take.
    `fixed` says which sizes of the inputs the export takes for granted, and why.
    `made_for` is the fingerprint of the graph the plan was made for, `source` the capture itself,
    which a plan that was read from JSON does not have.
    """

    order: str
    kept: Mapping[str, tuple[int, ...]]
    edges: tuple[Edge, ...]
    joins: tuple[Edge, ...]
    cuts: Mapping[str, Mapping[int, tuple[int, ...]]]
    sizes: Mapping[str, Mapping[int, int]]
    asked: Mapping[str, SizesRead]
    groups: Mapping[str, int]
    widths: Mapping[str, int]
    constants: frozenset[str]
    stayed: tuple[str, ...]
    unreached: tuple[str, ...]
    gone: frozenset[str]
    frozen: tuple[Frozen, ...]
    order_cost: float
    lower_bound: float
    unpruned_concatenated_bytes: int
    estimated_us: float | None = None
    masks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    zeroed: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    zeros: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    held: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    folds: Mapping[str, Folding] = field(default_factory=dict)
    gated: Mapping[str, Gating] = field(default_factory=dict)
    repeats: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    sums: Mapping[str, Sum] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()
    made_for: str = ""
    source: object = field(default=None, repr=False, compare=False)

    def to_json(self) -> str:
        """The plan as a document: every field but `source`, sealed by a digest."""
        return write_json(self, version=VERSION, without=frozenset({"source"}))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote; to export it, pass an example too.

        Raises `PlanError` on a document that was changed since.
        """
        without = frozenset({"source"})
        return read_json(cls, text, version=VERSION, without=without, check=_check_edges)

    @property
    def rounds(self) -> bool:
        """Whether weights are computed anew, and rounded to their own precision."""
        return bool(self.folds or self.gated)

    def __str__(self) -> str:
        everything = sorted((*self.edges, *self.joins), key=lambda edge: -edge.copied_bytes)
        kinds = [edge.kind for edge in everything]
        lines = [
            f"plan: order {self.order}, {self.copies} copies, {self.copied_bytes:,} bytes copied "
            f"(bound on the order's cost: {self.lower_bound:,.0f})",
            f"edges: {kinds.count('slice')} slices, {kinds.count('runs')} by runs, "
            f"{kinds.count('gather')} gathers, {kinds.count('infill')} infills, "
            f"{kinds.count('concat')} concatenations",
        ]
        copying = [edge for edge in everything if edge.copied_bytes]
        if copying:
            lines.append(f"{'reader':40} {'value':32} {'how':8} {'bytes':>12}")
        lines += [f"{e.node:40} {e.value:32} {e.kind:8} {e.copied_bytes:12,}" for e in copying]
        if self.stayed:
            lines.append(f"zeroed but not removed: {', '.join(self.stayed)}")
        lines += [
            f"zero but computed: {len(rows)} output channels of {name}"
            for name, rows in self.zeros.items()
        ]
        lines += [
            f"made zero at run time: {len(channels)} output channels of {name}"
            for name, channels in self.held.items()
        ]
        if self.unreached:
            lines.append(f"never reached: {', '.join(self.unreached)}")
        lines += [f"fixed: {said}" for said in self.fixed]
        lines += [f"frozen: {f.layer} ({f.operation}) {f.because} {f.source}" for f in self.frozen]
        return "\n".join(lines)

    def _fetched(self) -> list[Edge]:
        """What is fetched at run time: equal edges once."""
        unique = {(e.value, e.axis, e.pieces): e for e in (*self.edges, *self.joins)}
        return list(unique.values())

    @property
    def copies(self) -> int:
        """How many fetches gather or copy by runs."""
        return sum(edge.copied_bytes > 0 for edge in self._fetched())

    @property
    def copied_bytes(self) -> int:
        """Bytes copied that the unpruned model does not copy, at the example's size.

        Gathers, copies by runs, and what concatenations write beyond the unpruned model's.
        """
        everything = self._fetched()
        concatenated = sum(edge.concatenated_bytes for edge in everything)
        beyond = max(0, concatenated - self.unpruned_concatenated_bytes)
        return beyond + sum(edge.copied_bytes for edge in everything)


def _check_edges(plan: Plan) -> None:
    if not all(edge.pieces for edge in (*plan.edges, *plan.joins)):
        raise PlanError("the plan has an edge that reads nothing")
