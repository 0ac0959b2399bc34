"""Planning: a flow, what each layer keeps, an order and a target become a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from upscale.channels import Positions
from upscale.errors import PlanError
from upscale.flow.domain import ChannelFlow, Reduce
from upscale.planning.cuts import Cut, copied, untied, written_anew
from upscale.planning.families import Orders, order_classes, wants_of, windows_read
from upscale.planning.layouts import Layouts
from upscale.planning.plan import Plan
from upscale.planning.planner import Planner
from upscale.planning.pricing import WORTH_IT, Pricing
from upscale.planning.sums import Sum
from upscale.planning.widening import widen
from upscale.segments import Liveness, find_live
from upscale.target import BUILT_IN, Target

ORDERS = ("optimal", "mrap", "none")
ANYWHERE = Pricing(Target(), BUILT_IN)


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

    def written(self) -> tuple[Plan, Layouts]:
        """The plan, and where it puts everything."""
        wants = wants_of(self.flow, self.live, self.read)
        planner = Planner(
            self.flow, self.live, self.read, wants, self.orders, self.order, self.pricing
        )
        plan = planner.plan()
        return replace(plan, estimated_us=planner.price / 1000), planner.layouts


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
        draft = _with_windows(flow, {**kept, **windows}, order, pricing)
    else:
        draft = _with_cuts(flow, kept, order, pricing)
    plan, layouts = draft.written()
    if widened and order != "none":
        plan = _cheapest(draft, plan, layouts)
    return replace(
        plan,
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
) -> _Draft:
    """The draft whose order copies least; a copy that is made anyway may change the order."""
    live = find_live(flow, kept)
    wants = wants_of(flow, live, kept)

    def draft(cuts: frozenset[Cut]) -> _Draft:
        cut = untied(flow, cuts) if cuts else flow
        orders = order_classes(cut, live, wants, order)
        return _Draft(cut, kept, live, orders, order, pricing)

    best, cuts = draft(frozenset()), frozenset[Cut]()
    if order == "none":
        return best
    plan, _ = best.written()
    for where in (_written_anew, _copied_at_additions):
        more = cuts | where(flow, plan)
        if plan.copied_bytes and more > cuts:
            other = draft(more)
            tried, _ = other.written()
            if _burden(tried) < _burden(plan):
                best, plan, cuts = other, tried, more
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


def _cheapest(draft: _Draft, plan: Plan, layouts: Layouts) -> Plan:
    """The plan, or one like it with more channels made or read, whichever costs least."""
    plans = [plan]
    for wide in (draft, _filled(draft)):
        if wide is not draft:
            other, layouts = wide.written()
            plans.append(other)
        windows = widen(wide.flow, wide.live, wide.read, layouts, wide.pricing)
        if windows:
            read = {**wide.read, **windows}
            more = find_live(wide.flow, read)
            flags = {line: own | more.lines[line] for line, own in wide.live.lines.items()}
            needed = Liveness(flags, wide.live.values | more.values)
            plans.append(replace(wide, read=read, live=needed).written()[0])
    if draft.windowed:
        # Windows were chosen so that nothing is copied.
        plans = [each for each in plans if each.copied_bytes <= plan.copied_bytes]
    best = min(plans, key=_estimate)
    return best if _estimate(best) + WORTH_IT < _estimate(plan) else plan


def _estimate(plan: Plan) -> float:
    return 1000 * (plan.estimated_us or 0.0)


def _filled(draft: _Draft) -> _Draft:
    """The draft with needs that have no holes, and convolutions that make whole blocks."""
    flow, live, places = draft.flow, draft.live, dict(draft.orders.places)
    blocks: dict[int, int] = {}
    for relation in _makers(flow):
        classes = flow.classes[relation.out]
        alive = [c for c in classes[live.lines[relation.out]].tolist() if c in places]
        if alive:
            stream, _ = places[alive[0]]
            block = draft.pricing.block(flow, relation)
            blocks[stream] = min(block, blocks.get(stream, block))
            for channel in classes.tolist():
                # What nobody needs comes last.
                places.setdefault(channel, (stream, len(places)))
    orders = replace(draft.orders, places=places)
    return replace(draft, live=find_live(flow, draft.read, places, blocks), orders=orders)


def _makers(flow: ChannelFlow) -> Iterator[Reduce]:
    """The layers that make channels in an order of their choice."""
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and relation.groups == 1:
                yield relation
