"""Windows: one order of shared channels, and for each reader a stretch of it to choose from.

Each reader keeps its best channels within a window of consecutive ones. The search alternates
two steps that each can only gain: given the order, every reader takes its best window; given
where the windows lie, channels change places. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        return float(sum(self._best(reader, order)[0] for reader in range(len(self.keep))))

    def offsets(self, order: Positions) -> Positions:
        """Where each reader's best window starts."""
        return np.array([self._best(reader, order)[1] for reader in range(len(self.keep))])

    def _best(self, reader: int, order: Positions) -> tuple[float, int]:
        width, keep = int(self.width[reader]), int(self.keep[reader])
        windows = np.lib.stride_tricks.sliding_window_view(self.worth[reader][order], width)
        extra = width - keep
        total = windows.sum(axis=1)
        if extra > 0:
            total = total - np.partition(windows, extra - 1, axis=1)[:, :extra].sum(axis=1)
        start = int(np.argmax(total))
        return float(total[start]), start


def find_windows(
    scores: Matrix, keep: Positions, slack: float, *, order: Positions | None = None
) -> list[Positions]:
    """For each reader of a stream the channels in its window, `slack` wider than it keeps.

    `scores` holds a row for each reader. With an order given, only windows are chosen.

    >>> [sorted(w.tolist()) for w in find_windows(np.eye(3)[:2], np.array([1, 1]), 0.0)]
    [[0], [1]]
    """
    readers = Readers.of(scores, keep, slack)
    if order is None:
        order = _search(readers)
    return [
        order[start : start + width]
        for start, width in zip(
            readers.offsets(order).tolist(), readers.width.tolist(), strict=True
        )
    ]


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

    Places that the same windows cover are one zone. Between every two zones, channels are
    exchanged while that gains.
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
        moved = False
        for one in range(len(starts)):
            for other in range(one + 1, len(starts)):
                moved |= _exchange(order, zone, gain, one, other)
        if not moved:
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
    """Exchange single channels while that gains; the measure is exact, slack and all."""
    value = readers.value(order)
    for _ in range(EXCHANGES // max(1, len(readers.keep))):
        one, other = rng.integers(len(order), size=2)
        tried = order.copy()
        tried[one], tried[other] = order[other], order[one]
        gained = readers.value(tried)
        if gained > value + 1e-12:
            order, value = tried, gained
    return order
