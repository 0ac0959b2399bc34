"""Choosing: the units with the lowest scores go, until an amount is met.

Two ways. *By share*, every layer loses the same part of its channels. *By threshold*, all units
stand in one line by their scores, and the first so many go. Either way a number is searched for
(the share, or how many of the line) at which a measure of what goes reaches the amount::

    line      u7  u2  u9  u4  u1  ...      lowest score first
    measure    0  .04 .09 .11 .18 ...      of what goes, if all before it go
    amount .1              ^               u7, u2 and u9 go; .09 is as close as .11, and less

Limits are what layers hold on to, whatever their scores.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from upscale.channels import Flags, Positions
from upscale.errors import SelectionError
from upscale.selected.amounts import Amount
from upscale.selection.options import Options
from upscale.selection.scoring import Scores
from upscale.selection.units import Units
from upscale.tools.grouping import grouped


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds a choice back, by weight: shares of their own, layers that keep everything,
    and channels that are gone already.

    Every layer keeps `floor` channels at least, and a multiple of `round_to` where it can.
    """

    shares: Mapping[str, float]
    held: frozenset[str]
    gone: Mapping[str, Positions]
    floor: int = 1
    round_to: int = 1


def find_limits(
    options: Options, layers: Iterable[str], weights: Mapping[str, str], units: Units
) -> Limits:
    """The limits that options set. `weights` are those with a choice, by their layers' names.

    Patterns may name any of the model's layers; those without a choice keep all anyway.
    """
    names = tuple(layers)

    def matching(pattern: str, option: str) -> list[str]:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise SelectionError(
                f"{option}: {pattern!r} matches no convolution or linear; patterns are layer "
                "names, with * for any part"
            )
        return [weights[name] for name in found if name in weights]

    shares = {
        weight: Amount(share).share
        for pattern, share in (options.overrides or {}).items()
        for weight in matching(pattern, "overrides")
    }
    held = frozenset(weight for own in options.ignore for weight in matching(own, "ignore"))
    before = options.within.kept if options.within else {}
    gone = {
        weights[name]: np.setdiff1d(np.arange(len(units.of[weights[name]])), list(kept))
        for name, kept in before.items()
        if name in weights
    }
    return Limits(shares, held, gone, options.floor, options.round_to)


Measure = Callable[[Mapping[str, Flags]], float]

# A threshold meets its amount when it misses it by less than this share of it.
MET = 0.005
# How often an interval of shares is halved, and how many units are tried to fill up with.
HALVINGS = FILLERS = 40


@dataclass(frozen=True, slots=True, eq=False)
class Readership:
    """Units that the same layers read: what a share is taken of. Lowest scores first.

    `readers` says by weight how many channels of it each unit holds.
    """

    units: Positions
    readers: Mapping[str, int]

    def share(self, share: float, limits: Limits) -> float:
        """The share these units are to lose: the least that any of their readers is to."""
        if not limits.held.isdisjoint(self.readers):
            return 0.0
        return min(limits.shares.get(reader, share) for reader in self.readers)


class Chooser:
    """Chooses units to prune; the lowest scores go first.

    `measure` says what a choice amounts to. It may be dear: no choice is measured twice. Where
    scores are costs (`by_cost`), an amount is not filled up with units that cost much more.
    """

    def __init__(
        self,
        units: Units,
        scores: Mapping[str, Scores],
        limits: Limits,
        measure: Measure,
        *,
        by_cost: bool = False,
    ) -> None:
        self._fills = not by_cost and limits.round_to == 1
        self._units, self._limits, self._measure = units, limits, measure
        self._measured: dict[bytes, float] = {}
        self._order = np.argsort(_unit_scores(units, scores, limits), kind="stable")
        self._readerships = _readerships(units, self._order)
        self._readers = {
            unit: group.readers for group in self._readerships for unit in group.units.tolist()
        }

    def by_share(self, share: float) -> dict[str, Flags]:
        """What is kept if every layer loses a share of its channels."""
        return self._kept(self._gone_by_share(share))

    def by_share_that_meets(self, target: float) -> dict[str, Flags]:
        """What is kept if every layer loses the same share, and all that goes meets a target."""
        low, high = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self._amount(self._gone_by_share(middle)) < target:
                low = middle
            else:
                high = middle
        return self._kept(self._closest(target, [self._gone_by_share(s) for s in (low, high)]))

    def by_threshold(self, target: float) -> dict[str, Flags]:
        """What is kept if layers compete, and all that goes meets a target."""
        fixed = self._gone_by_share(0.0)
        # Units whose readers are held, or have a share of their own, do not compete.
        bound = self._limits.held | self._limits.shares.keys()
        free = [unit for unit in self._order.tolist() if bound.isdisjoint(self._readers[unit])]
        line = list(self._within_floors(free, fixed))

        def gone_up_to(place: int) -> Flags:
            return self._gone_with(fixed, line[:place])

        met = bisect_left(range(len(line)), target, key=lambda n: self._amount(gone_up_to(n)))
        short = max(0, met - 1)
        gone = self._closest(target, [gone_up_to(short), gone_up_to(met)])
        if abs(self._amount(gone) - target) > MET * target and self._fills:
            gone = self._closest(target, [gone, self._filled(fixed, line, short, target)])
        return self._kept(gone)

    def _closest(self, target: float, choices: list[Flags]) -> Flags:
        """The choice whose amount comes closest; the first of those that come equally close."""
        return min(choices, key=lambda gone: abs(self._amount(gone) - target))

    def _amount(self, gone: Flags) -> float:
        key = np.packbits(gone).tobytes()
        if key not in self._measured:
            self._measured[key] = self._measure(self._kept(gone))
        return self._measured[key]

    def _within_floors(self, line: list[int], fixed: Flags) -> Iterator[int]:
        """The units that can go one after the other before every layer is at its floor."""
        left = {weight: int((~fixed[own]).sum()) for weight, own in self._units.of.items()}
        for unit in line:
            readers = self._readers[unit]
            if all(left[r] - n >= self._limits.floor for r, n in readers.items()):
                for reader, number in readers.items():
                    left[reader] -= number
                yield unit

    def _filled(self, fixed: Flags, line: list[int], start: int, target: float) -> Flags:
        """The threshold undershot, then whichever next units still fit."""
        chosen = line[:start]
        for unit in line[start : start + FILLERS]:
            amount = self._amount(self._gone_with(fixed, [*chosen, unit]))
            if amount <= target * (1 + MET):
                chosen.append(unit)
            if abs(amount - target) <= MET * target:
                break
        return self._gone_with(fixed, chosen)

    def _gone_by_share(self, share: float) -> Flags:
        """What goes if each readership loses a share.

        Shares of few units round badly: of two readerships of 5 that one layer reads, 30% is 1.5
        units each. Its error is handed on to the next that shares a reader: 1 goes of the first,
        2 of the second.
        """
        gone = np.zeros(self._units.count, dtype=bool)
        error: dict[str, float] = defaultdict(float)
        left = {weight: len(own) for weight, own in self._units.of.items()}
        for group in self._readerships:
            size = len(group.units)
            ideal = size - group.share(share, self._limits) * size
            readers = group.readers.items()
            kept = min(
                self._numbers_kept(group, ideal, left),  # of equals the first, so the least
                key=lambda n: sum((error[r] + m * (n - ideal)) ** 2 for r, m in readers),
            )
            gone[group.units[: size - kept]] = True
            for reader, number in readers:
                error[reader] += number * (kept - ideal)
                left[reader] -= number * (size - kept)
        return gone

    def _numbers_kept(self, group: Readership, ideal: float, left: Mapping[str, int]) -> list[int]:
        """How many units a readership may keep: the multiples around the ideal, within floors."""
        size, step = len(group.units), self._limits.round_to
        if ideal == size:
            return [size]
        spare = min((left[r] - self._limits.floor) // n for r, n in group.readers.items())
        least = max(0, size - max(0, spare))
        below = int(np.floor(ideal / step)) * step
        return sorted({min(size, max(least, number)) for number in (below, below + step)})

    def _gone_with(self, fixed: Flags, chosen: list[int]) -> Flags:
        """What goes when the chosen do, each readership brought to a multiple."""
        gone = fixed.copy()
        gone[chosen] = True
        step = self._limits.round_to
        for group in self._readerships if step > 1 else ():
            size = len(group.units)
            kept = size - int(gone[group.units].sum())
            if kept < size:
                nearest = min(size, max(step, round(kept / step) * step))
                gone[group.units] = np.arange(size) < size - nearest
        return gone

    def _kept(self, gone: Flags) -> dict[str, Flags]:
        return {weight: ~gone[own] for weight, own in self._units.of.items()}


def _unit_scores(units: Units, scores: Mapping[str, Scores], limits: Limits) -> Scores:
    """The mean of its channels' scores for each unit; what is gone already scores lowest."""
    total = np.zeros(units.count)
    for weight, own in units.of.items():
        total += np.bincount(own, weights=scores[weight], minlength=units.count)
    mean = total / np.maximum(1, units.members())
    for weight, gone in limits.gone.items():
        if weight in units.of:
            mean[units.of[weight][gone]] = -np.inf
    return mean


def _readerships(units: Units, order: Positions) -> list[Readership]:
    """Units by who reads them, each readership's in the given order."""
    readers: dict[int, dict[str, int]] = defaultdict(dict)
    for weight, own in units.of.items():
        for unit, channels in Counter(own.tolist()).items():
            readers[unit][weight] = channels
    together = grouped((tuple(counts.items()), unit) for unit, counts in readers.items())
    rank = np.argsort(order)
    # Units of one channel first: shared ones make up for what rounding those has left.
    alone_first = sorted(together.items(), key=lambda item: sum(dict(item[0]).values()) > 1)
    return [
        Readership(np.array(sorted(own, key=rank.__getitem__)), dict(key))
        for key, own in alone_first
    ]
