"""Planning: a flow, what each layer keeps, an order and a target become a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from upscale.channels import Places, Positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.liveness import Liveness, find_live
from upscale.flow.reads import wants_of
from upscale.flow.relations import Reduce
from upscale.flow.untying import Cut, copied, untied, written_anew
from upscale.lowering.sums import Sum
from upscale.planning.layouts import Layouts
from upscale.planning.orders import Orders, order_classes, windows_read
from upscale.planning.plan import Plan
from upscale.planning.pricing import WORTH_IT, Pricing
from upscale.planning.widening import widen
from upscale.planning.writer import Planner
from upscale.targets.target import BUILT_IN, Target

ORDERS = ("optimal", "mrap", "none")
ANYWHERE = Pricing(Target(), BUILT_IN)
# The part of a plan's time that has to be saved for another plan to be tried.
WORTH_PLANNING = 0.002


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """What a plan is written from: a flow, what layers read, what is live, and the orders."""

    flow: ChannelFlow
    read: Mapping[str, Positions]
    live: Liveness
    orders: Orders
    order: str
    pricing: Pricing
    windowed: bool = False
    together: bool = False

    def written(self) -> _Written:
        """The plan, and where it puts everything."""
        wants = wants_of(self.flow, self.live, self.read)
        planner = Planner(
            self.flow,
            self.live,
            self.read,
            wants,
            self.orders,
            self.order,
            self.pricing,
            together=self.together,
        )
        plan = planner.plan()
        return _Written(self, replace(plan, estimated_us=planner.price / 1000), planner.layouts)


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """A draft, the plan written from it, and where that puts everything."""

    draft: _Draft
    plan: Plan
    layouts: Layouts

    @property
    def price(self) -> float:
        """What the plan should take, in nanoseconds."""
        return 1000 * (self.plan.estimated_us or 0.0)

    def or_if_cheaper(self, other: _Written) -> _Written:
        """The other, if it is worth it; where windows are read, it must copy no more."""
        copies = other.plan.copied_bytes > self.plan.copied_bytes and self.draft.windowed
        return other if other.price + WORTH_IT < self.price and not copies else self


def make_plan(
    flow: ChannelFlow,
    kept: Mapping[str, Positions],
    order: str,
    *,
    pricing: Pricing = ANYWHERE,
    windows: Mapping[str, Positions] | None = None,
    sums: Mapping[str, Sum] | None = None,
    widened: bool = False,
) -> Plan:
    """Decide orders, layouts and edges for the columns each weight keeps.

    Weights with a window read all of it, with zeros for what they do not keep; then needs are
    filled up until they have no holes, so that an order of all windows lets everything be read
    as slices. `sums` are the additions that the flow has split. `widened`, and but for the order
    `none`, layers may read and make more channels than they must where that is cheaper.
    """
    if order not in ORDERS:
        raise PlanError(f"order is {order!r}; it must be one of {', '.join(ORDERS)}")
    if windows and order != "none":
        best = _with_windows(flow, {**kept, **windows}, order, pricing).written()
    else:
        best = _with_cuts(flow, kept, order, pricing)
    if sums and order != "none":
        best = best.or_if_cheaper(replace(best.draft, together=True).written())
    if widened and order != "none":
        best = _widened(_filled(best))
    return replace(
        best.plan,
        kept={name[1:]: tuple(own.tolist()) for name, own in kept.items()},
        sums=dict(sums or {}),
    )


def _with_windows(
    flow: ChannelFlow, read: Mapping[str, Positions], order: str, pricing: Pricing
) -> _Draft:
    cut = untied(flow, written_anew(flow))
    needed = find_live(cut, read)
    sets = windows_read(cut, needed, read)
    orders = order_classes(cut, needed, wants_of(cut, needed, read), order, sets)
    live = find_live(cut, read, orders.places)
    return _Draft(cut, read, live, orders, order, pricing, windowed=True)


def _with_cuts(
    flow: ChannelFlow, kept: Mapping[str, Positions], order: str, pricing: Pricing
) -> _Written:
    """The plan whose order copies least; a copy that is made anyway may change the order."""
    live = find_live(flow, kept)
    wants = wants_of(flow, live, kept)

    def draft(cuts: frozenset[Cut]) -> _Draft:
        cut = untied(flow, cuts) if cuts else flow
        orders = order_classes(cut, live, wants, order)
        return _Draft(cut, kept, live, orders, order, pricing)

    best, cuts = draft(frozenset()).written(), frozenset[Cut]()
    if order == "none":
        return best
    for where in (_written_anew, _copied_at_additions):
        more = cuts | where(flow, best.plan)
        if best.plan.copied_bytes and more > cuts:
            other = draft(more).written()
            if _burden(other.plan) < _burden(best.plan):
                best, cuts = other, more
    return best


def _written_anew(flow: ChannelFlow, plan: Plan) -> frozenset[Cut]:
    """Where the model itself writes channels anew, whatever the plan."""
    return written_anew(flow)


def _copied_at_additions(flow: ChannelFlow, plan: Plan) -> frozenset[Cut]:
    """Where a plan copies to add: a copy can bring channels into any order."""
    return copied(flow, frozenset((e.node, e.value) for e in plan.edges if e.copied_bytes))


def _burden(plan: Plan) -> tuple[int, int, int]:
    """What makes one plan better than another: bytes, then copies, then pieces."""
    return plan.copied_bytes, plan.copies, sum(len(edge.pieces) for edge in plan.edges)


def _widened(base: _Written) -> _Written:
    """The plan, or one in which layers read more than they keep, if that is cheaper."""
    draft = base.draft
    windows, saved = widen(draft.flow, draft.live, draft.read, base.layouts, draft.pricing)
    if saved < WORTH_PLANNING * base.price:
        return base
    read = {**draft.read, **windows}
    more = find_live(draft.flow, read)
    flags = {line: own | more.lines[line] for line, own in draft.live.lines.items()}
    needed = Liveness(flags, draft.live.values | more.values, draft.live.steps | more.steps)
    return base.or_if_cheaper(replace(draft, read=read, live=needed).written())


def _filled(base: _Written) -> _Written:
    """The plan, or one in which needs have no holes and convolutions make whole blocks."""
    draft = base.draft
    if not draft.pricing.has_tails and not _copied_at_additions(draft.flow, base.plan):
        return base
    flow, live, before = draft.flow, draft.live, draft.orders.places
    stream, place = before.stream.copy(), before.place.copy()
    last = len(place)
    blocks: dict[int, int] = {}
    for relation in _makers(flow):
        classes = flow.classes[relation.out]
        alive = classes[live.lines[relation.out]]
        free = stream[alive] >= 0
        if free.any():
            own = int(stream[alive[free.argmax()]])
            block = draft.pricing.block(flow, relation)
            blocks[own] = min(block, blocks.get(own, block))
            # What nobody needs comes last.
            idle = np.unique(classes[stream[classes] < 0])
            stream[idle], place[idle] = own, last + np.arange(len(idle))
            last += len(idle)
    places = Places(stream, place)
    more = find_live(flow, draft.read, places, blocks)
    if all(np.array_equal(own, live.lines[line]) for line, own in more.lines.items()):
        return base
    orders = replace(draft.orders, places=places)
    return base.or_if_cheaper(replace(draft, live=more, orders=orders).written())


def _makers(flow: ChannelFlow) -> Iterator[Reduce]:
    """The layers that make channels in an order of their choice."""
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and relation.groups == 1:
                yield relation
