"""Edges: how a node gets the channels it wants of a value, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
