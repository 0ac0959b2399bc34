"""Search: a lowered flow, an order and a target become the cheapest plan that was found.

A first draft orders streams and copies where it must. Then a few changes are tried, each kept if it
pays: orders that change where a copy is made anyway, sums that are put together once, live sets
without holes and in whole blocks, and reads that are wider than what layers keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from upscale.channels import Parameter, Places, Positions, by_name
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.liveness import Liveness, columns_of, find_live, wants_of
from upscale.flow.untying import Cut, copied, untied, written_anew
from upscale.lowering.lowered import Lowered
from upscale.planning.laying import Cuts, Draft, Written, write
from upscale.planning.orders import Solved, order_classes, windows_read
from upscale.planning.plan import (
    GraphChanges,
    Inserted,
    Plan,
    Report,
    WeightChanges,
    bytes_copied,
    fetched,
)
from upscale.planning.whole_blocks import in_blocks, with_idle
from upscale.planning.widening import widen
from upscale.targets.prices import BUILT_IN, WORTH_IT, WORTH_PLANNING
from upscale.targets.target import Pricing, Target

ORDERS = ("optimal", "mrap", "none")
SUMS = ("split", "infill", "whole")
ANYWHERE = Pricing(Target(), BUILT_IN)


@dataclass(frozen=True, slots=True)
class Way:
    """How a plan is made: the order's method, the target's prices, whether layers may read and
    make more channels than they must where that is cheaper, and how tensors are summed that lack
    different channels."""

    order: str = "optimal"
    pricing: Pricing = ANYWHERE
    widen: bool = True
    sums: str = "split"

    def __post_init__(self) -> None:
        for name, known in (("order", ORDERS), ("sums", SUMS)):
            if getattr(self, name) not in known:
                raise PlanError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}"
                )


class Burden(NamedTuple):
    """What makes one plan better than another: bytes, then copies, then pieces."""

    copied_bytes: int
    copies: int
    pieces: int


def measured(written: Written) -> Burden:
    """What a draft copies."""
    edges = fetched(written.graph)
    return Burden(
        bytes_copied(edges, concatenated_bytes(written.draft.flow)),
        sum(edge.copied_bytes > 0 for edge in edges),
        sum(len(edge.pieces) for edge in written.graph.edges),
    )


def make_plan(lowered: Lowered, way: Way) -> Plan:
    """Decide orders, layouts and edges for the columns each weight keeps.

    Weights with a window read all of it, with zeros for what they do not keep; then needs are
    filled up until they have no holes, so that an order of all windows lets everything be read
    as slices.
    """
    search = _Search(lowered.flow, way)
    if lowered.windows and way.order != "none":
        best = search.with_windows(columns_of(lowered.flow, {**lowered.kept, **lowered.windows}))
    else:
        best = search.with_cuts(columns_of(lowered.flow, lowered.kept))
    if way.order != "none":
        if any(len(each.reads) > 1 and not each.joined for _, each in lowered.flow.selects):
            best = search.cheaper(best, write(replace(best.draft, together=True), way.pricing))
        if way.widen:
            best = search.cheaper(search.widened(search.filled(best)), search.in_blocks(best))
    return _finished(lowered, way.order, best)


class _Search:
    def __init__(self, flow: ChannelFlow, way: Way) -> None:
        self._flow, self._order, self._pricing = flow, way.order, way.pricing

    def cheaper(self, one: Written, other: Written) -> Written:
        """The other, if it is worth it; where windows are read, it must copy no more."""
        copies = one.draft.windowed and measured(other).copied_bytes > measured(one).copied_bytes
        return other if other.price + WORTH_IT < one.price and not copies else one

    def with_windows(self, read: Mapping[str, Positions]) -> Written:
        """The plan in which every layer reads its window as a slice."""
        cut = untied(self._flow, written_anew(self._flow))
        needed = find_live(cut, read)
        sets = windows_read(cut, needed, read)
        orders = order_classes(cut, needed, wants_of(cut, needed, read), self._order, sets)
        live = find_live(cut, read, orders.places)
        wants = wants_of(cut, live, read)
        draft = Draft(cut, read, live, wants, orders, self._order, windowed=True)
        return write(draft, self._pricing)

    def with_cuts(self, kept: Mapping[str, Positions]) -> Written:
        """The plan whose order copies least; a copy that is made anyway may change the order."""
        live = find_live(self._flow, kept)
        wants = wants_of(self._flow, live, kept)
        solved: Solved = {}

        def written(cuts: frozenset[Cut]) -> Written:
            flow = untied(self._flow, cuts) if cuts else self._flow
            orders = order_classes(flow, live, wants, self._order, solved=solved)
            return write(Draft(flow, kept, live, wants, orders, self._order), self._pricing)

        best, cuts = written(frozenset()), frozenset[Cut]()
        if self._order == "none":
            return best
        for where in (lambda _: written_anew(self._flow), self._copied_at_additions):
            more = cuts | where(best) if measured(best).copied_bytes else cuts
            if more > cuts:
                other = written(more)
                if measured(other) < measured(best):
                    best, cuts = other, more
        return best

    def _copied_at_additions(self, written: Written) -> frozenset[Cut]:
        """Where a plan copies to add: a copy can bring channels into any order."""
        copies = [(edge.node, edge.value) for edge in written.graph.edges if edge.copied_bytes]
        return copied(self._flow, frozenset(copies)) if copies else frozenset()

    def widened(self, base: Written) -> Written:
        """The plan, or one in which layers read more than they keep, if that is cheaper."""
        draft = base.draft
        if all(self._pricing.price(draft.flow, (each,)) < WORTH_IT for each in base.fetches):
            return base  # there is nothing to save
        windows, saved = widen(draft.flow, draft.live, draft.read, base.layouts, self._pricing)
        if saved < WORTH_PLANNING * base.price:
            return base
        read = {**draft.read, **windows}
        more = find_live(draft.flow, read)
        flags = {line: alive | more.lines[line] for line, alive in draft.live.lines.items()}
        values, steps = draft.live.values | more.values, draft.live.steps | more.steps
        return self._tried(base, read, Liveness(flags, values, steps), draft.orders.places)

    def filled(self, base: Written) -> Written:
        """The plan, or one in which needs have no holes and convolutions make whole blocks."""
        draft = base.draft
        if not self._pricing.has_tails and not self._copied_at_additions(base):
            return base
        places, blocks = with_idle(draft.flow, draft.live, draft.orders.places, self._pricing.block)
        more = find_live(draft.flow, draft.read, places, blocks)
        if all(np.array_equal(own, draft.live.lines[line]) for line, own in more.lines.items()):
            return base
        return self._tried(base, draft.read, more, places)

    def in_blocks(self, base: Written) -> Written:
        """The plan, or one whose layers read whole tensors and whole blocks, if that is cheaper."""
        if not self._pricing.prices.favours_whole:
            return base
        best = base
        for joins in (False, True):
            other = write(in_blocks(base.draft, self._pricing, joins=joins), self._pricing)
            best = self.cheaper(best, other)
        return best

    def _tried(
        self, base: Written, read: Mapping[str, Positions], live: Liveness, places: Places
    ) -> Written:
        """The base, or what it becomes with other reads, needs and places, if that is cheaper."""
        wants = wants_of(base.draft.flow, live, read)
        orders = replace(base.draft.orders, places=places)
        other = replace(base.draft, read=read, live=live, wants=wants, orders=orders)
        return self.cheaper(base, write(other, self._pricing))


def _finished(lowered: Lowered, order: str, best: Written) -> Plan:
    """The plan that a draft makes of a lowered flow."""
    flow = lowered.flow
    pruned = {layer.name for _, layer in flow.layers}
    kept = by_name(lowered.kept)
    left = sorted(kept.keys() - pruned)
    unreached = {name for name in left if Parameter(name) not in flow.uses} | lowered.unreached
    return Plan(
        order=order,
        kept={name: tuple(columns.tolist()) for name, columns in kept.items()},
        graph=_with_turns(flow, best.graph, lowered.renamed),
        weights=WeightChanges(
            cuts={
                name: {axis: tuple(own.tolist()) for axis, own in by_axis.items()}
                for name, by_axis in by_name(best.cuts).items()
            },
            folds=lowered.folds,
            gates=lowered.gates,
        ),
        masks=lowered.masks,
        report=Report(
            stayed=tuple(name for name in left if Parameter(name) in flow.uses),
            unreached=tuple(sorted(unreached)),
            frozen=tuple(step.frozen for step in flow.steps if step.frozen),
            order_cost=best.draft.orders.cost,
            lower_bound=best.draft.orders.lower_bound,
            unpruned_concatenated_bytes=concatenated_bytes(flow),
            estimated_us=best.price / 1000,
            zeros=_zeros_left(lowered, best.graph, best.cuts),
            fixed=lowered.fixed,
        ),
    )


def _with_turns(flow: ChannelFlow, graph: GraphChanges, renamed: Mapping[str, str]) -> GraphChanges:
    """The changes with the steps that lowering inserted, each at the node where it runs."""
    turns: dict[str, list[str]] = {step.at: [] for step in flow.steps if step.at is not None}
    inserted = {}
    for step in flow.steps:
        node = step.node if step.at is None else step.at
        if node in turns:
            turns[node].append(step.node)
        if step.at is not None and step.executed:
            weights = [value for value in step.reads if isinstance(value, Parameter)]
            reads = tuple(value for value in step.reads if value not in weights)
            weight = weights[0].name if weights else None
            inserted[step.node] = Inserted(reads, step.makes[0], weight)
    ordered = {node: tuple(names) for node, names in turns.items()}
    return replace(graph, turns=ordered, inserted=inserted, renamed=renamed)


def _zeros_left(lowered: Lowered, graph: GraphChanges, cuts: Cuts) -> dict[str, tuple[int, ...]]:
    """The rows of weights that are zero and are computed all the same."""
    run = {v for step in lowered.flow.steps if step.node not in graph.gone for v in step.reads}
    left = {}
    for weight, by_axis in lowered.masks.zeroed.items():
        for axis, gone in by_axis.items():
            here = cuts.get(Parameter(weight), {}).get(axis)
            rows = np.array(gone) if here is None else np.intersect1d(gone, here)
            if Parameter(weight) in run and len(rows) and weight.endswith("weight"):
                left[weight] = tuple(rows.tolist())
    return left


def concatenated_bytes(flow: ChannelFlow) -> int:
    """Bytes that the unpruned model's own concatenations and channel paddings write."""
    return sum(flow.nbytes[joined.out.value] for _, joined in flow.selects if joined.joined)
