"""Whole blocks: layers that read all of a tensor, and tensors whose widths suit a runtime.

Where a slice is a copy, and an odd width leaves the fast kernels, a plan is better that copies and
splits nothing. So every layer reads all that is made of its stream, with zero weights for what it
does not keep, and as many channels are made as fill whole blocks.

Say the readers of a stream of 32 keep {0 .. 20} and {4 .. 25}, and blocks are of 8. What is made is
26 channels, rounded up to 32, and both read all of it: no slice, no odd width. If the second alone
would gain more from 24 channels than their slice costs, it reads 4 .. 27.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from upscale.channels import Flags, Parameter, Places, Positions
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.lines import GRID, Line
from upscale.flow.liveness import Liveness, find_live, wants_of
from upscale.flow.relations import Reduce
from upscale.planning.laying import Draft
from upscale.planning.orders import order_classes
from upscale.targets.target import Fetched, Pricing


def in_blocks(draft: Draft, pricing: Pricing, *, joins: bool) -> Draft:
    """A draft in which layers read whole tensors, and tensors have whole blocks.

    Without `joins`, what layers read of concatenations stays as it is.
    """
    flow = draft.flow
    wide = [r for r in _readers(flow, draft.live) if joins or not _joined(flow, r.read)]
    alive = _alive(flow, draft.live)
    narrow = {r.layer for r in wide if _pays_to_slice(draft, pricing, r, alive)}
    read = {**draft.read, **_whole(flow, wide, narrow, alive)}
    live = find_live(flow, read)
    orders = order_classes(flow, live, wants_of(flow, live, read), draft.order)
    places, blocks = with_idle(flow, live, orders.places, pricing.multiple)
    live = find_live(flow, read, places, blocks)
    alive = _alive(flow, live)
    read |= _whole(flow, wide, narrow, alive)
    for relation in wide:
        if relation.layer in narrow:
            block = pricing.multiple(flow, relation)
            own = _window(flow, relation.read, read[relation.layer], alive, places, block)
            read[relation.layer] = own
    live = find_live(flow, read, places, blocks)
    wants = wants_of(flow, live, read)
    return replace(draft, read=read, live=live, wants=wants, orders=replace(orders, places=places))


def with_idle(
    flow: ChannelFlow,
    live: Liveness,
    before: Places,
    block_of: Callable[[ChannelFlow, Reduce], int],
) -> tuple[Places, dict[int, int]]:
    """Places for the channels of ordered streams that nobody needs, behind all others; and the
    blocks in which each stream is made."""
    stream, place = before.stream.copy(), before.place.copy()
    last = len(place)
    blocks: dict[int, int] = {}
    for _, layer in flow.layers:
        classes = flow.classes[layer.out]
        alive = classes[live.lines[layer.out]]
        free = stream[alive] >= 0
        if layer.groups == 1 and free.any():
            own = int(stream[alive[free.argmax()]])
            block = block_of(flow, layer)
            blocks[own] = min(block, blocks.get(own, block))
            idle = np.unique(classes[stream[classes] < 0])
            stream[idle], place[idle] = own, last + np.arange(len(idle))
            last += len(idle)
    return Places(stream, place), blocks


def _readers(flow: ChannelFlow, live: Liveness) -> Iterator[Reduce]:
    """The layers that may read more than they keep: each weight is used once, by it alone."""
    for step, layer in flow.layers:
        if (
            step.node in live.steps
            and step.executed
            and layer.groups == 1
            and layer.layer == layer.weight
            and isinstance(layer.weight, Parameter)
            and flow.uses[layer.weight] == 1
            and layer.read.axis != GRID
            and layer.read in flow.classes
            and layer.read not in flow.blocks
        ):
            yield layer


def _joined(flow: ChannelFlow, line: Line) -> bool:
    """Whether a line's channels are of tensors that are concatenated."""
    selected = {relation.out: relation for _, relation in flow.selects}
    passed = {relation.out: relation for _, relation in flow.passes}
    while (relation := selected.get(line) or passed.get(line)) is not None:
        if line in selected and selected[line].joined:
            return True
        tracked = [each for each in relation.reads if each in flow.classes]
        if not tracked:
            return False
        line = tracked[0]
    return False


def _alive(flow: ChannelFlow, live: Liveness) -> Flags:
    """The classes of which anything is made at all; features are alive as their channels are."""
    alive = np.zeros(flow.class_count, dtype=bool)
    for line, classes in flow.classes.items():
        alive[classes[live.lines[line]]] = True
    for feature, channel in flow.carried.items():
        alive[feature] |= alive[channel]
    return alive


def _whole(
    flow: ChannelFlow, wide: list[Reduce], narrow: set[str], alive: Flags
) -> Mapping[str, Positions]:
    """What layers read that read all that is alive."""
    return {
        layer.layer: np.flatnonzero(alive[flow.classes[layer.read]])
        for layer in wide
        if layer.layer not in narrow
    }


def _pays_to_slice(draft: Draft, pricing: Pricing, layer: Reduce, alive: Flags) -> bool:
    """Whether a slice of what it keeps costs less than a layer takes for the rest."""
    flow, kept = draft.flow, len(draft.read[layer.layer])
    full = int(alive[flow.classes[layer.read]].sum())
    rows = int(draft.live.lines[layer.out].sum())
    kept = min(full, -(-kept // (block := pricing.multiple(flow, layer))) * block)
    if kept == full or not kept:
        return False
    taken = Fetched(layer.read, kept, 1, whole=False)
    slicing = pricing.fetch(pricing.rates(flow, [layer.read]), [taken], joined=False)
    saved = pricing.layer(flow, layer, full, rows) - pricing.layer(flow, layer, kept, rows)
    return slicing < saved


def _window(
    flow: ChannelFlow, line: Line, kept: Positions, alive: Flags, places: Places, block: int
) -> Positions:
    """The channels of a line from the first that is kept to the last, and whole blocks of them;
    those that are kept, where they are not ordered."""
    classes = flow.classes[line]
    there = np.flatnonzero(alive[classes])
    place, stream = places.place[classes[there]], places.stream[classes[there]]
    if not len(kept) or (stream != stream[0]).any() or stream[0] < 0:
        return kept
    there = there[np.argsort(place, kind="stable")]
    inside = np.flatnonzero(np.isin(there, kept))
    first, last = int(inside[0]), int(inside[-1]) + 1
    last = min(len(there), last + -(last - first) % block)
    first = max(0, first - -(last - first) % block)
    return np.sort(there[first:last])
