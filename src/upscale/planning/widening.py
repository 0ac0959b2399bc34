"""Widening: layers that read a few channels more than they keep, where that is faster.

The weights of what is read beside are zero. So a read that would be a copy becomes a slice, or a
copy of fewer runs.

A layer wants places 0 1 2 4 5 9 of a tensor of ten: three runs, a copy. One gap is 1 wide (3), the
other 3 (6 7 8). Filling the first leaves two runs, filling both one slice of ten. Each way costs
what it fetches and what the wider layer computes more; the cheapest is taken, if it saves enough.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from upscale.channels import Parameter, Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.lines import Line
from upscale.flow.liveness import Liveness
from upscale.flow.relations import Reduce
from upscale.planning.layouts import Layouts
from upscale.targets.prices import WORTH_IT
from upscale.targets.target import Fetched, Pricing

# How much wider than what it keeps a layer may become: a pruned model should be smaller as well.
MOST_WIDENED = 1.5
# The width of the gap of what lies before or behind all that is wanted; and of what is nowhere.
OUTSIDE, NOT_HELD = 2**30, 2**31


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """A layer's read: where its channels come from, and what stands between.

    `line` is what is fetched; `passing` are the results, each read by the next alone, through
    which its channels pass on their way to the layer.
    """

    relation: Reduce
    line: Line
    passing: tuple[Line, ...]


def widen(
    flow: ChannelFlow,
    live: Liveness,
    kept: Mapping[str, Positions],
    layouts: Layouts,
    pricing: Pricing,
) -> tuple[dict[str, Positions], float]:
    """The columns that layers had better read, where they are more than they keep; and what
    that saves, in nanoseconds.

    `layouts` tells where a plan puts everything; nothing is read that it does not hold.
    """
    found, total = {}, 0.0
    for read in _reads(flow, live):
        columns = kept[read.relation.layer]
        if len(columns):
            wide, saved = _cheapest(flow, live, layouts, pricing, read, columns)
            if saved:
                found[read.relation.layer] = wide
                total += saved
    return found, total


def _reads(flow: ChannelFlow, live: Liveness) -> Iterator[_Read]:
    """The reads of layers that can be widened: each weight is used once, by its layer alone."""
    uses = flow.uses
    readers: dict[Line, int] = defaultdict(int)
    passes: dict[Line, Line] = {}
    for step in flow.steps:
        for relation in step.relations:
            for line in relation.reads:
                readers[line] += 1
    for step, each in flow.passes:
        computed = [line for line in each.reads if line not in each.cuts]
        single = len(computed) == 1 and computed[0] in flow.classes
        if single and step.executed and not each.whole:
            passes[each.out] = computed[0]
    for step, layer in flow.layers:
        if (
            step.node in live.steps
            and step.executed
            and layer.groups == 1
            and layer.layer == layer.weight
            and isinstance(layer.weight, Parameter)
            and uses[layer.weight] == 1
            and layer.read.value in step.reads
            and layer.read in flow.classes
            and layer.read not in flow.blocks
        ):
            line, passing = layer.read, []
            while line in passes and readers[line] == uses[line.value] == 1:
                passing.append(line)
                line = passes[line]
            if line not in flow.blocks:
                yield _Read(layer, line, tuple(passing))


def _cheapest(
    flow: ChannelFlow,
    live: Liveness,
    layouts: Layouts,
    pricing: Pricing,
    read: _Read,
    columns: Positions,
) -> tuple[Positions, float]:
    """The columns to read, of those with ever wider gaps filled, that cost least; and what they
    save."""
    found = layouts.find(read.line, np.arange(flow.sizes[read.line]))
    place = np.full(len(found.root), -1)
    for number, root in enumerate(found.roots):
        if root is not None:
            mine = found.root == number
            place[mine] = layouts.place(root, found.position[mine])
    if (place[columns] < 0).any():
        return columns, 0.0  # some of what it reads is no tensor's
    order = np.lexsort((place, found.root))
    rates = pricing.rates(flow, (root for root in found.roots if root is not None))
    rows = int(live.lines[read.relation.out].sum())
    held = [0 if root is None else len(layouts.of(root)) for root in found.roots]
    joined = layouts.joins(read.line)

    def compute(width: int) -> float:
        passed = sum(pricing.passing(flow, line, width) for line in read.passing)
        return passed + pricing.layer(flow, read.relation, width, rows)

    def fetched(columns: Positions, *, together: bool = False) -> float:
        taken = np.zeros(len(order), dtype=bool)
        taken[columns] = True
        here = order[taken[order]]
        root = found.root[here]
        starts = np.ones(len(here), dtype=bool)
        starts[1:] = (np.diff(place[here]) != 1) | (np.diff(root) != 0)
        count = len(found.roots)
        channels = np.bincount(root, minlength=count).tolist()
        stretches = np.bincount(root[starts], minlength=count).tolist()
        parts = [
            Fetched(root, number, 1 if together else runs, whole=together or number == all_of_it)
            for root, number, runs, all_of_it in zip(
                found.roots, channels, stretches, held, strict=True
            )
            if root is not None and number
        ]
        if len(parts) == 1 and not joined and parts[0].whole:
            return 0.0
        return pricing.fetch(rates, parts, joined=joined)

    def price(columns: Positions) -> float:
        return fetched(columns) + compute(len(columns))

    least = fetched(columns, together=True) if joined or len(found.roots) > 1 else 0.0
    if fetched(columns) - least < WORTH_IT:
        return columns, 0.0
    gap = np.full(len(place), NOT_HELD)
    wanted = np.zeros(len(place), dtype=bool)
    wanted[columns] = True
    for number, root in enumerate(found.roots):
        if root is not None:
            mine = found.root == number
            gap[mine] = _gaps(place[mine], np.sort(place[mine & wanted]))
    widths = np.unique(gap[(gap > 0) & (gap < NOT_HELD)])
    doubling = np.searchsorted(widths, 2 ** np.arange(32), side="right")
    steps = widths[np.unique(doubling[doubling > 0]) - 1]
    candidates = [np.flatnonzero(gap <= width) for width in steps.tolist()]
    candidates = [each for each in candidates if len(each) <= MOST_WIDENED * len(columns)]
    best = min(candidates, key=price, default=columns)
    saved = price(columns) - price(best)
    return (best, saved) if saved > WORTH_IT else (columns, 0.0)


def _gaps(place: Positions, wanted: Positions) -> Positions:
    """How wide the gap between wanted places (sorted) is around each place; 0 if wanted."""
    gap = np.full(len(place), OUTSIDE)
    if len(wanted):
        after = np.minimum(np.searchsorted(wanted, place), len(wanted) - 1)
        between = (place > wanted[0]) & (place < wanted[-1])
        gap[between] = (wanted[after] - wanted[after - 1] - 1)[between]
        gap[wanted[after] == place] = 0
    gap[place < 0] = NOT_HELD
    return gap
