"""Fetches: the channels that an edge wants, as nodes. The one way any tensor is rearranged."""

from __future__ import annotations

from functools import partial

import torch
from torch import fx, nn

from upscale.planning import Edge, Piece, Spread
from upscale.planning.plan import GraphChanges
from upscale.rewrite.building import Building
from upscale.rewrite.gather import Gather, Infill
from upscale.tools.grouping import grouped


class Fetches:
    """Reads values as a plan's edges say; what two edges read alike is fetched once."""

    def __init__(self, building: Building, changes: GraphChanges, device: torch.device) -> None:
        self._building, self._graph, self._device = building, building.graph, device
        self._fetched: dict[tuple[str, int, tuple[Piece, ...]], fx.Node] = {}
        self._slices: dict[tuple[fx.Node, int, int, int], fx.Node] = {}
        self._gathers = 0
        self._edges = grouped(((edge.node, edge.value), edge) for edge in changes.edges)

    def read(self, node: str, value: str) -> fx.Node:
        """A value as a node reads it: whole, or fetched along one axis after the other."""
        edges = self._edges.get((node, value), [])
        new = self.fetch(edges[0]) if edges else self._building.values[value]()
        for edge in edges[1:]:
            new = self._take(new, edge)
        return new

    def fetch(self, edge: Edge) -> fx.Node:
        """Materialise the channels an edge wants."""
        key = (edge.value, edge.axis, edge.pieces)
        if key not in self._fetched:
            fetched = self._take(None, edge)
            if edge.spread is not None:
                fetched = self._spread(fetched, edge.axis, edge.spread)
            self._fetched[key] = fetched
        return self._fetched[key]

    def _spread(self, flat: fx.Node, axis: int, spread: Spread) -> fx.Node:
        """Make a grid of channels that lie along one axis."""
        grid = self._graph.call_method("unflatten", (flat, axis, spread.sizes))
        if spread.order != tuple(range(len(spread.order))):
            grid = self._graph.call_method("permute", (grid, *spread.order))
        return self._building.view(grid)

    def _take(self, source: fx.Node | None, edge: Edge) -> fx.Node:
        """The pieces of an edge side by side: from a node, or from where their values are."""

        def part(piece: Piece) -> fx.Node:
            return self._piece(source or self._building.values[piece.value](), edge, piece)

        if len(edge.pieces) == 1:
            return part(edge.pieces[0])
        first, last = edge.pieces[0], edge.pieces[-1]
        if len(edge.pieces) == 2 and first.zeros != last.zeros:
            if last.zeros:
                return self._pad(part(first), edge, 0, last.length)
            return self._pad(part(last), edge, first.length, 0)
        parts = [part(piece) for piece in edge.pieces]
        return self._graph.call_function(torch.cat, (parts, edge.axis))

    def _pad(self, source: fx.Node, edge: Edge, before: int, after: int) -> fx.Node:
        """A value, or a part of it, with channels of zeros before and after."""
        pad = [0] * (2 * (edge.axes - 1 - edge.axis)) + [before, after]
        return self._graph.call_function(nn.functional.pad, (source, pad))

    def _piece(self, source: fx.Node, edge: Edge, piece: Piece) -> fx.Node:
        axis = edge.axis
        if piece.zeros:
            none = self._graph.call_function(torch.narrow, (source, axis, 0, 0))
            return self._pad(none, edge, 0, piece.length)
        if piece.indices is not None:  # channels are copied one by one
            path, self._gathers = f"gathers.{self._gathers}", self._gathers + 1
            kind = partial(Infill, axes=edge.axes) if piece.fills else Gather
            gather = kind(axis, piece.indices, rows=piece.rows)
            self._building.held[path] = gather.to(self._device)
            return self._graph.call_module(path, (source,))
        if piece.whole:
            return source
        key = (source, axis, piece.start, piece.length)
        if key not in self._slices:
            narrowed = self._graph.call_function(torch.narrow, key)
            self._slices[key] = self._building.view(narrowed)
        return self._slices[key]
