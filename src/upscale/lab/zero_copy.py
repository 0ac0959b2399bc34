"""The paper's zero-copy reference: the cost of a perfect order, and the WRONG NUMBERS.

The paper bounds what any order of channels can save by an export "without copies": every reader
takes a slice of the right length, whether or not its channels lie there. Benchmarks need that
bound. Nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import fx, nn

from upscale.api import export
from upscale.planning import Edge, Piece, Plan
from upscale.planning.plan import origin_of, remember
from upscale.tools.grouping import grouped


def wrong_numbers_zero_copy(model: nn.Module, plan: Plan) -> fx.GraphModule:
    """An export that costs what it would if every read were free. Its outputs are MEANINGLESS.

    Layers, their sizes and the shapes of all results are those of `export(model, plan)`; the
    channels that layers read are not. Time it, never ship it.

    >>> import torch, upscale
    >>> class Fork(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b, self.c = nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         x = self.a(x)
    ...         return self.b(x), self.c(x)
    >>> model, x = Fork(), torch.zeros(1, 2)
    >>> kept = upscale.Selection(kept={"b": [0, 2], "c": [1, 3]})
    >>> plan = upscale.plan(model, x, kept, order="none")
    >>> exported = wrong_numbers_zero_copy(model, plan)
    >>> type(exported).__name__, plan.copies, [y.shape[1] for y in exported(x)]
    ('WrongNumbersFork', 2, [2, 2])
    """
    return export(model, wrong_numbers_plan(plan))


def wrong_numbers_plan(plan: Plan) -> Plan:
    """The plan with a slice of the same length wherever an edge would gather or copy by runs.

    A concatenation stays one, since no order of channels saves it, but takes one slice of each
    of its values. So does an edge that takes some channels several times, where the unpruned
    model copies too, or that fills in zeros.
    """
    graph = replace(
        plan.graph,
        edges=tuple(_without_copy(edge) for edge in plan.graph.edges),
        joins=tuple(_without_copy(edge) for edge in plan.graph.joins),
    )
    wrong = replace(
        plan,
        order=f"{plan.order}, then zero-copy with WRONG NUMBERS",
        graph=graph,
        report=replace(plan.report, lower_bound=0.0),
    )
    if (origin := origin_of(plan)) is not None:
        named = replace(origin.captured, name=f"WrongNumbers{origin.captured.name}")
        remember(wrong, replace(origin, captured=named))
    return wrong


def _without_copy(edge: Edge) -> Edge:
    by_root = grouped(((piece.value, piece.zeros), piece) for piece in edge.pieces)
    pieces = (slice_ for pieces in by_root.values() for slice_ in _slices(pieces))
    return replace(edge, pieces=tuple(pieces))


def _slices(pieces: list[Piece]) -> Iterator[Piece]:
    """As few slices of one value as have the total length of its pieces."""
    first, *rest = pieces
    if not rest and first.indices is None:
        yield first
        return
    length = sum(piece.length for piece in pieces)
    if first.zeros:
        yield replace(first, length=length)
        return
    # The plan does not say how long the value is; what its pieces span is surely there, and
    # no shorter than they are together unless some channels are taken several times.
    start = min(max(0, min(p.indices)) if p.indices is not None else p.start for p in pieces)
    stop = max(max(p.indices) + 1 if p.indices is not None else p.start + p.length for p in pieces)
    while length > 0:
        taken = min(length, stop - start)
        yield Piece(first.value, start, taken)
        length -= taken
