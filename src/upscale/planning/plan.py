"""The plan: everything the rewrite will do, as plain data, in four parts and a report."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from upscale.errors import PlanError
from upscale.flow.channel_flow import Frozen
from upscale.lowering.lowered import Folding, Gating, Masks
from upscale.planning.document import read_json, write_json


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

    `axis` is the one of `axes` that the pieces lie along. `channel_bytes` is what one channel of
    the value weighs, `spread` how to make a grid of what was fetched. A `joined` edge reads what
    the unpruned model concatenates too.
    """

    node: str
    value: str
    axis: int
    axes: int
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


VERSION = 4  # 3 was one table of 28 fields


@dataclass(frozen=True, slots=True)
class Inserted:
    """A step that the model does not have: an addition, or a small layer of a `weight` of its own.

    Two additions of parts are what is left of one whose operands lack different channels; a small
    layer reads a gate for columns that meet multiples of it.
    """

    reads: tuple[str, ...]
    makes: str
    weight: str | None = None


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """What happens to the nodes of the graph.

    `edges` lists the reads that are not of a whole tensor, `joins` the concatenations that are
    built once for several readers, `gone` the steps that do not run, `constants` the layers that
    read nothing and give their bias. `sizes` are the new sizes in reshapes, `asked` the values
    whose shape is read, `groups` the new numbers of groups, `widths` the channels left in modules
    that work on each alone. `turns` names, for nodes that lowering changed, the steps that run in
    their place, in order; those that the model does not have are `inserted`, and `renamed` is what
    a node computes that others know under another name.
    """

    edges: tuple[Edge, ...]
    joins: tuple[Edge, ...]
    gone: frozenset[str]
    constants: frozenset[str]
    sizes: Mapping[str, Mapping[int, int]]
    asked: Mapping[str, SizesRead]
    groups: Mapping[str, int]
    widths: Mapping[str, int]
    turns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inserted: Mapping[str, Inserted] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def sums(self) -> tuple[str, ...]:
        """The additions of which only a part is left, or none: they do not run as they were."""
        turns = self.turns.items()
        return tuple(node for node, steps in turns if node in self.inserted or node not in steps)


@dataclass(frozen=True, slots=True)
class WeightChanges:
    """What happens to parameters: the indices each keeps along each axis it is cut along; the
    columns that went because they always meet one number, or a multiple of what a gate gives."""

    cuts: Mapping[str, Mapping[int, tuple[int, ...]]]
    folds: Mapping[str, Folding] = field(default_factory=dict)
    gates: Mapping[str, Gating] = field(default_factory=dict)

    @property
    def rounds(self) -> bool:
        """Whether weights are computed anew, and rounded to their own precision."""
        return bool(self.folds or self.gates)


@dataclass(frozen=True, slots=True)
class Report:
    """What a plan has to say of itself.

    `stayed` are the weights whose pruned columns cannot leave and become zeros, `unreached` those
    no node reads, `zeros` the rows of weights that make nothing but zeros and cannot leave.
    `order_cost` is what the orders leave apart, in bytes, and `lower_bound` what any would;
    `estimated_us` is how long the layers, elementwise operations and copies should take. `fixed`
    says which sizes of the inputs the export takes for granted, and why.
    """

    stayed: tuple[str, ...]
    unreached: tuple[str, ...]
    frozen: tuple[Frozen, ...]
    order_cost: float
    lower_bound: float
    unpruned_concatenated_bytes: int
    estimated_us: float
    zeros: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What an export will do. Plain data: no tensors, no modules.

    `kept` are the columns each weight keeps. `made_for` is the fingerprint of the graph the plan
    was made for; it is written into a document, and empty in a plan that was made here.
    """

    order: str
    kept: Mapping[str, tuple[int, ...]]
    graph: GraphChanges
    weights: WeightChanges
    masks: Masks
    report: Report
    made_for: str = field(default="", compare=False)

    def to_json(self) -> str:
        """The plan as a document, sealed by a digest."""
        return write_json(stamped(self), version=VERSION)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote; to export it, pass an example too.

        Raises `PlanError` on a document that was changed since.
        """
        return read_json(cls, text, version=VERSION, check=_check_edges)

    def __str__(self) -> str:
        edges = sorted((*self.graph.edges, *self.graph.joins), key=lambda e: -e.copied_bytes)
        kinds = [edge.kind for edge in edges]
        lines = [
            f"plan: order {self.order}, {self.copies} copies, {self.copied_bytes:,} bytes copied "
            f"(bound on the order's cost: {self.lower_bound:,.0f})",
            f"edges: {kinds.count('slice')} slices, {kinds.count('runs')} by runs, "
            f"{kinds.count('gather')} gathers, {kinds.count('infill')} infills, "
            f"{kinds.count('concat')} concatenations",
        ]
        copying = [edge for edge in edges if edge.copied_bytes]
        if copying:
            lines.append(f"{'reader':40} {'value':32} {'how':8} {'bytes':>12}")
        lines += [f"{e.node:40} {e.value:32} {e.kind:8} {e.copied_bytes:12,}" for e in copying]
        if self.report.stayed:
            lines.append(f"zeroed but not removed: {', '.join(self.report.stayed)}")
        lines += [
            f"zero but computed: {len(rows)} output channels of {name}"
            for name, rows in self.zeros.items()
        ]
        lines += [
            f"made zero at run time: {len(channels)} output channels of {name}"
            for name, channels in self.held.items()
        ]
        if self.report.unreached:
            lines.append(f"never reached: {', '.join(self.report.unreached)}")
        lines += [f"fixed: {said}" for said in self.fixed]
        lines += [f"frozen: {f.layer} ({f.operation}) {f.because} {f.source}" for f in self.frozen]
        return "\n".join(lines)

    @property
    def copies(self) -> int:
        """How many fetches gather or copy by runs."""
        return sum(edge.copied_bytes > 0 for edge in fetched(self.graph))

    @property
    def copied_bytes(self) -> int:
        """Bytes copied that the unpruned model does not copy, at the example's size.

        Gathers, copies by runs, and what concatenations write beyond the unpruned model's.
        """
        return bytes_copied(fetched(self.graph), self.report.unpruned_concatenated_bytes)

    @property
    def lower_bound(self) -> float:
        """The bytes of reads that any order leaves apart."""
        return self.report.lower_bound

    @property
    def estimated_us(self) -> float:
        """How long layers, elementwise operations and copies should take, in microseconds."""
        return self.report.estimated_us

    @property
    def frozen(self) -> tuple[Frozen, ...]:
        """What stays whole, and why."""
        return self.report.frozen

    @property
    def stayed(self) -> tuple[str, ...]:
        """The weights whose pruned columns cannot leave and become zeros."""
        return self.report.stayed

    @property
    def unreached(self) -> tuple[str, ...]:
        """The weights that a selection names and no node reads."""
        return self.report.unreached

    @property
    def fixed(self) -> tuple[str, ...]:
        """The sizes of the inputs that the export takes for granted, and why."""
        return self.report.fixed

    @property
    def zeros(self) -> Mapping[str, tuple[int, ...]]:
        """The rows of weights that make nothing but zeros and cannot leave."""
        return self.report.zeros

    @property
    def held(self) -> Mapping[str, tuple[int, ...]]:
        """The channels that are made zero at run time, by the module behind which they are."""
        return self.masks.held


def fetched(graph: GraphChanges) -> list[Edge]:
    """What is fetched at run time: equal edges once."""
    unique = {(e.value, e.axis, e.pieces): e for e in (*graph.edges, *graph.joins)}
    return list(unique.values())


def bytes_copied(edges: Iterable[Edge], concatenated_anyway: int) -> int:
    """Bytes that edges copy, and concatenate beyond what the unpruned model does."""
    edges = list(edges)
    beyond = max(0, sum(edge.concatenated_bytes for edge in edges) - concatenated_anyway)
    return beyond + sum(edge.copied_bytes for edge in edges)


def _check_edges(plan: Plan) -> None:
    if not all(edge.pieces for edge in (*plan.graph.edges, *plan.graph.joins)):
        raise PlanError("the plan has an edge that reads nothing")


class Origin(Protocol):
    """What is remembered of a plan's making."""

    @property
    def fingerprint(self) -> str:
        """What the model computes that the plan was made for, as a digest."""


_ORIGINS: dict[int, Any] = {}


def remember(plan: object, origin: Origin) -> None:
    """Remember where a plan came from while it is alive."""
    _ORIGINS[id(plan)] = origin
    weakref.finalize(plan, _ORIGINS.pop, id(plan), None)


def stamped(plan: Plan) -> Plan:
    """A copy of a plan that says what it was made for, whatever becomes of its origin."""
    origin = origin_of(plan)
    return replace(plan) if origin is None else replace(plan, made_for=origin.fingerprint)


def origin_of(plan: object) -> Any:
    """Where a plan came from; `None` if it was read from a document."""
    return _ORIGINS.get(id(plan))
