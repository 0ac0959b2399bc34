"""Writing a plan: where everything lies and what steps want become edges, cuts and sizes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np

from upscale.channels import Positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import Step
from upscale.flow.relations import GRID, Pass, Reduce
from upscale.names import Parameter
from upscale.planning.edges import Edge, Piece, SizesRead
from upscale.planning.fetching import Fetching
from upscale.planning.laying import Draft, Laid, Wanted, lay_out
from upscale.planning.layouts import Layouts
from upscale.planning.plan import GraphChanges
from upscale.targets.target import LayerWork, PassWork, Pricing, Work

Cuts = dict[str, dict[int, Positions]]


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A draft, what it does to the graph and to parameters, and where it puts everything.

    `price` is what it should take, in nanoseconds.
    """

    draft: Draft
    graph: GraphChanges
    cuts: Cuts
    layouts: Layouts
    price: float


def write(draft: Draft, pricing: Pricing) -> Written:
    """Lay a draft out, and write down what that does to nodes and parameters."""
    laid = lay_out(draft)
    writer = _PlanWriter(draft, laid, pricing)
    for step in draft.flow.steps:
        writer.visit(step)
    price = pricing.price(draft.flow, writer.work)
    return Written(draft, writer.changes(), writer.cuts, laid.layouts, price)


class _PlanWriter:
    def __init__(self, draft: Draft, laid: Laid, pricing: Pricing) -> None:
        self._draft, self._laid, self._flow = draft, laid, draft.flow
        self.work: list[Work] = []
        self._fetching = Fetching(draft, laid, pricing, self.work)
        self._layers: dict[str, list[Reduce]] = defaultdict(list)
        self._passes: dict[str, list[Pass]] = defaultdict(list)
        for step, layer in draft.flow.layers:
            self._layers[step.node].append(layer)
        for step, relation in draft.flow.passes:
            self._passes[step.node].append(relation)
        self.cuts: Cuts = defaultdict(dict)
        self._edges: list[Edge] = []
        self._joins: list[Edge] = []
        self._asked: dict[str, SizesRead] = {}
        self._sizes: dict[str, dict[int, int]] = defaultdict(dict)
        self._widths: dict[str, int] = {}
        self._gone: set[str] = set()

    def changes(self) -> GraphChanges:
        """What happens to the graph."""
        return GraphChanges(
            edges=tuple(self._edges),
            joins=tuple(self._joins),
            gone=frozenset(self._gone),
            constants=frozenset(self._laid.constants),
            sizes=dict(self._sizes),
            asked=self._asked,
            groups=self._laid.groups,
            widths=self._widths,
        )

    def visit(self, step: Step) -> None:
        """Write down what happens to one step."""
        if step.node in self._laid.joins:
            self._joins.append(self._fetching.join(step.node, self._laid.joins[step.node]))
        elif step.node not in self._draft.live.steps or not step.executed:
            self._gone.add(step.node)
        else:
            if step.shape_only:
                self._asked |= {value: self._fetching.asked(value) for value in step.reads}
            else:
                self._fetch(step)
            self._compute(step)
            for line in step.resize:
                self._sizes[step.node][line.axis] = len(self._laid.layouts.of(line))

    def _compute(self, step: Step) -> None:
        """Note what a step computes; a module that works on each channel is fitted."""
        for layer in self._layers[step.node]:
            columns = len(self._draft.read[layer.layer])
            rows = len(self._laid.layouts.of(layer.out))
            self.work.append(LayerWork(layer, columns, rows))
        for relation in self._passes[step.node]:
            width = len(self._laid.layouts.of(relation.out))
            self.work.append(PassWork(relation.out, width))
            if step.module:
                self._widths[step.node] = width

    def _fetch(self, step: Step) -> None:
        """Make an edge of every read that is not of a whole tensor, and cut parameters."""
        wanted, layouts = self._laid.wanted[step.node], self._laid.layouts
        for line, positions in wanted.items():
            if isinstance(line.value, Parameter):
                self.cuts[line.value][line.axis] = positions
        for value in step.reads:
            if not isinstance(value, Parameter):
                self._read(step, value, wanted)
        made = {relation.out.value for relation in step.relations if relation.out is not None}
        for line, positions in wanted.items():
            if line.value in made and not np.array_equal(positions, layouts.of(line)):
                raise PlanError(f"{step.node} would have to rearrange channels within")

    def _read(self, step: Step, value: str, wanted: Wanted) -> None:
        """An edge for each line of a value that is not read whole; each takes of what is left."""
        left = 1.0
        unread = self._laid.unread.get(step.node)
        if unread is not None and unread.value == value:
            zeros = (Piece(value, 0, 1, zeros=True),)
            axes = len(self._flow.shapes[value])
            self._edges.append(Edge(step.node, value, unread.axis, axes, zeros, 0))
            left = 1 / self._flow.sizes[unread]
        lines = {line for line in wanted if line.value == value}
        for line in sorted(lines.union(self._flow.lines.get(value, ()))):
            size, selected = self._flow.sizes[line], self._laid.layouts.is_select(line)
            positions = wanted[line] if line in wanted else np.arange(size)
            if selected or not np.array_equal(positions, self._laid.layouts.of(line)):
                if line.axis == GRID and not selected:
                    raise PlanError(f"{step.node} would have to rearrange a computed grid")
                edge = self._fetching.read(step.node, line, positions)
                weight = round(edge.channel_bytes * left)
                self._edges.append(replace(edge, channel_bytes=weight))
                left *= len(positions) / max(1, size)
