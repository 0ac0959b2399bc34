"""Window search: one order of a stream's channels, and for each reader a stretch of it to keep.

Two layers read four channels, and each is to keep two. The first likes channels 0 and 2, the
second 2 and 3. In the order that the model has, the second finds its channels side by side; the
first does not, and in a window of two it makes do with 0 and 1:

>>> scores, keep = np.array([[9.0, 1, 8, 1], [1, 1, 8, 9]]), np.array([2, 2])
>>> [sorted(w.tolist()) for w in find_windows(scores, keep, 0.0, order=np.arange(4))]
[[0, 1], [2, 3]]

Where the order is free, one is searched for in which both have what they like, such as 0 2 3 1:

>>> [sorted(w.tolist()) for w in find_windows(scores, keep, 0.0)]
[[0, 2], [2, 3]]

Or windows have slack: half as wide again, the first reads 0, 1 and 2 in the model's order, with
weight zero for 1, and loses nothing either:

>>> [sorted(w.tolist()) for w in find_windows(scores, keep, 0.5, order=np.arange(4))]
[[0, 1, 2], [1, 2, 3]]

The search alternates two steps that can only gain. Given the order, every reader takes its best
window. Given where windows lie, the places fall into *zones* that the same windows cover, and
channels change zones: which place within a zone makes no difference. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from upscale.channels import Positions

Matrix = npt.NDArray[np.float64]

ROUNDS = 30
PASSES = 3
# How much a search may do: starts are fewer in wide streams and where there are many readers.
STARTS = 12
WORK = 4_000_000
# Streams up to this wide are polished by trying single exchanges of channels.
POLISHED = 128
EXCHANGES = 4000
AHEAD = 64


@dataclass(frozen=True, slots=True, eq=False)
class Readers:
    """Who reads a stream: how much each channel is worth to each, and how many each keeps."""

    worth: Matrix
    keep: Positions
    width: Positions

    @classmethod
    def of(cls, scores: Matrix, keep: Positions, slack: float) -> Readers:
        """Readers whose windows are `slack` wider than what they keep.

        What a reader loses counts as a share of what it would keep if it were alone.
        """
        channels = scores.shape[1]
        ranked = -np.sort(-scores, axis=1)
        best = np.array([row[:k].sum() for row, k in zip(ranked, keep.tolist(), strict=True)])
        width = np.minimum(channels, [k + math.ceil(slack * k) for k in keep.tolist()])
        return cls(scores / np.maximum(best, 1e-300)[:, None], keep, width.astype(np.int64))

    def value(self, order: Positions) -> float:
        """What all readers keep, each within its best window."""
        return float(self.values(order[None])[0])

    def values(self, orders: Positions) -> Matrix:
        """What all readers keep, for each of several orders."""
        worth = np.zeros(len(orders))
        for reader in range(len(self.keep)):
            worth += self._totals(reader, orders).max(axis=1)
        return worth

    def offsets(self, order: Positions) -> Positions:
        """Where each reader's best window starts."""
        return np.array(
            [self._totals(reader, order[None])[0].argmax() for reader in range(len(self.keep))]
        )

    def _totals(self, reader: int, orders: Positions) -> Matrix:
        """What a reader keeps in each window of each order: its best channels there."""
        width, keep = int(self.width[reader]), int(self.keep[reader])
        worth = self.worth[reader][orders]
        windows = np.lib.stride_tricks.sliding_window_view(worth, width, axis=1)
        total: Matrix = windows.sum(axis=2)
        extra = width - keep
        if extra > 0:
            total = total - np.partition(windows, extra - 1, axis=2)[:, :, :extra].sum(axis=2)
        return total


def find_windows(
    scores: Matrix, keep: Positions, slack: float, *, order: Positions | None = None
) -> list[Positions]:
    """For each reader of a stream the channels in its window, `slack` wider than it keeps.

    `scores` holds a row for each reader. With an order given, only windows are chosen.
    """
    readers = Readers.of(scores, keep, slack)
    if order is None:
        order = _search(readers)
    starts = readers.offsets(order)
    return [order[a:b] for a, b in zip(starts, starts + readers.width, strict=True)]


def _search(readers: Readers) -> Positions:
    rng = np.random.default_rng(0)
    count, channels = readers.worth.shape
    best, most = np.arange(channels), -math.inf
    starts = WORK // (count * channels**2 + 400 * count**2)
    for start in range(min(STARTS, max(1, starts))):
        order, value = _climb(readers, _start(readers, start, rng))
        if value > most:
            best, most = order, value
    return _polish(readers, best, rng) if channels <= POLISHED else best


def _start(readers: Readers, number: int, rng: np.random.Generator) -> Positions:
    """An order to start from: readers pull to one side or the other, channels follow."""
    sides = rng.choice([-1.0, 1.0], size=len(readers.keep))
    if number == 0:
        centred = readers.worth - readers.worth.mean(axis=1, keepdims=True)
        sides = np.linalg.svd(centred, full_matrices=False)[0][:, 0]
    return np.argsort(sides @ readers.worth, kind="stable")


def _climb(readers: Readers, order: Positions) -> tuple[Positions, float]:
    """Alternate windows and places until nothing is gained."""
    value = readers.value(order)
    for _ in range(ROUNDS):
        moved = _rearranged(readers, order)
        gained = readers.value(moved)
        if gained <= value + 1e-12:
            break
        order, value = moved, gained
    return order, value


def _rearranged(readers: Readers, order: Positions) -> Positions:
    """The order after channels have changed places, windows lying where they lie best.

    Between every two zones, channels are exchanged while that gains.
    """
    offsets = readers.offsets(order)
    ends = offsets + readers.width
    edges = np.unique(np.concatenate(([0, len(order)], offsets, ends)))
    zone = np.searchsorted(edges, np.arange(len(order)), side="right") - 1
    starts = edges[:-1]
    covers = (offsets[None, :] <= starts[:, None]) & (starts[:, None] < ends[None, :])
    gain = readers.worth.T @ covers.T.astype(np.float64)
    order = order.copy()
    for _ in range(PASSES):
        pairs = combinations(range(len(starts)), 2)
        moved = [_exchange(order, zone, gain, one, other) for one, other in pairs]
        if not any(moved):
            break
    return order


def _exchange(order: Positions, zone: Positions, gain: Matrix, one: int, other: int) -> bool:
    """Exchange channels between two zones while that gains."""
    here, there = np.flatnonzero(zone == one), np.flatnonzero(zone == other)
    leave = gain[order[here], other] - gain[order[here], one]
    come = gain[order[there], one] - gain[order[there], other]
    first, second = np.argsort(-leave, kind="stable"), np.argsort(-come, kind="stable")
    count = min(len(here), len(there))
    pays = int((leave[first[:count]] + come[second[:count]] > 1e-12).sum())
    if pays:
        a, b = here[first[:pays]], there[second[:pays]]
        order[a], order[b] = order[b], order[a]
    return pays > 0


def _polish(readers: Readers, order: Positions, rng: np.random.Generator) -> Positions:
    """Exchange single channels while that gains; the measure is exact, slack and all.

    Exchanges are tried one after the other. Few gain in the end, so as many are valued at once
    as were in vain before; the first that gains is made, and those after it are tried anew.
    """
    value = readers.value(order)
    pairs = rng.integers(len(order), size=(EXCHANGES // max(1, len(readers.keep)), 2))
    done, ahead = 0, 1
    while done < len(pairs):
        some = pairs[done : done + ahead]
        tried = np.tile(order, (len(some), 1))
        np.put_along_axis(tried, some, order[some[:, ::-1]], axis=1)
        values = readers.values(tried)
        gained = np.flatnonzero(values > value + 1e-12)
        if len(gained):
            first = int(gained[0])
            order, value = tried[first], float(values[first])
            done, ahead = done + first + 1, max(1, ahead // 2)
        else:
            done, ahead = done + len(some), min(2 * ahead, AHEAD)
    return order
