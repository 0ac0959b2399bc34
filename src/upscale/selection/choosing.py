"""Choosing: scores of channels and an amount become the channels each layer keeps. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from upscale.channels import Flags, Positions
from upscale.selection.units import Units

Scores = npt.NDArray[np.float64]
Measure = Callable[[Mapping[str, Flags]], float]

# A global amount is met when it is missed by less than this share of itself.
MET = 0.005
STEPS = 40


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds a choice back, by weight: shares of their own, channels that stay or are gone.

    Every layer keeps `floor` channels at least, and a multiple of `round_to` where it can.
    """

    shares: Mapping[str, float]
    held: frozenset[str]
    gone: Mapping[str, Positions]
    floor: int = 1
    round_to: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """Units that the same layers read: what a share is taken of. Lowest scores first."""

    units: Positions
    readers: Mapping[str, int]

    def share(self, share: float, limits: Limits) -> float:
        """The share this atom is to lose: the least that any of its readers is to."""
        if any(reader in limits.held for reader in self.readers):
            return 0.0
        return min(limits.shares.get(reader, share) for reader in self.readers)


class Chooser:
    """Chooses units to prune; the lowest scores go first."""

    def __init__(self, units: Units, scores: Mapping[str, Scores], limits: Limits) -> None:
        self._units, self._limits = units, limits
        self._scores = _unit_scores(units, scores, limits)
        self._order = np.lexsort((np.arange(units.count), self._scores))
        self._atoms = _atoms(units, self._order)
        self._readers = {unit: atom.readers for atom in self._atoms for unit in atom.units.tolist()}
        self._widths = {weight: len(own) for weight, own in units.of.items()}

    def local(self, target: float, measure: Measure | None) -> dict[str, Flags]:
        """Every layer loses the same share: the target's, or what meets it in a measure."""
        if measure is None:
            return self._kept(self._local(target))
        low, high = 0.0, 1.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            if measure(self._kept(self._local(middle))) < target:
                low = middle
            else:
                high = middle
        options = [self._kept(self._local(share)) for share in (low, high)]
        return min(options, key=lambda kept: abs(measure(kept) - target))

    def globally(self, target: float, measure: Measure) -> dict[str, Flags]:
        """One threshold for all layers, where it meets the target."""
        fixed = self._local(0.0)
        line = [unit for unit in self._order.tolist() if self._is_free(unit)]
        line = list(self._within_floors(line, fixed))
        low, high = 0, len(line)
        while low < high:
            middle = (low + high) // 2
            if measure(self._kept(self._rounded(fixed, line[:middle]))) < target:
                low = middle + 1
            else:
                high = middle
        options = {n: self._kept(self._rounded(fixed, line[:n])) for n in {max(0, low - 1), low}}
        best = min(options, key=lambda n: (abs(measure(options[n]) - target), n))
        miss = abs(measure(options[best]) - target)
        if miss <= MET * target or self._limits.round_to > 1:
            return options[best]
        filled = self._filled(fixed, line, max(0, low - 1), target, measure)
        return min((options[best], filled), key=lambda kept: abs(measure(kept) - target))

    def _is_free(self, unit: int) -> bool:
        readers = self._readers[unit]
        limits = self._limits
        return not any(r in limits.held or r in limits.shares for r in readers)

    def _within_floors(self, line: list[int], fixed: Flags) -> Iterator[int]:
        """The units that can go one after the other before every layer is at its floor."""
        left = {weight: int((~fixed[own]).sum()) for weight, own in self._units.of.items()}
        for unit in line:
            readers = self._readers[unit]
            if all(left[r] - n >= self._limits.floor for r, n in readers.items()):
                for reader, number in readers.items():
                    left[reader] -= number
                yield unit

    def _filled(
        self, fixed: Flags, line: list[int], start: int, target: float, measure: Measure
    ) -> dict[str, Flags]:
        """The threshold undershot, then whichever next units still fit."""
        chosen = line[:start]
        for unit in line[start : start + STEPS]:
            kept = self._kept(self._rounded(fixed, [*chosen, unit]))
            reached = measure(kept)
            if reached <= target * (1 + MET):
                chosen.append(unit)
            if abs(reached - target) <= MET * target:
                break
        return self._kept(self._rounded(fixed, chosen))

    def _local(self, share: float) -> Flags:
        """What goes if each atom loses its share, errors of rounding handed on to its kin."""
        gone = np.zeros(self._units.count, dtype=bool)
        error: dict[str, float] = defaultdict(float)
        left = dict(self._widths)
        for atom in self._atoms:
            size = len(atom.units)
            ideal = size - atom.share(share, self._limits) * size
            kept = min(
                self._sizes(atom, ideal, left),
                key=lambda n: (
                    sum((error[r] + m * (n - ideal)) ** 2 for r, m in atom.readers.items()),
                    n,
                ),
            )
            gone[atom.units[: size - kept]] = True
            for reader, number in atom.readers.items():
                error[reader] += number * (kept - ideal)
                left[reader] -= number * (size - kept)
        return gone

    def _sizes(self, atom: Atom, ideal: float, left: Mapping[str, int]) -> list[int]:
        """How many units an atom may keep: the multiples around the ideal, within floors."""
        size, step = len(atom.units), self._limits.round_to
        spare = min((left[r] - self._limits.floor) // n for r, n in atom.readers.items())
        least = max(0, size - max(0, spare))
        below = int(np.floor(ideal / step)) * step
        options = {min(size, max(least, below)), min(size, max(least, below + step))}
        if ideal == size:
            options = {size}
        return sorted(options)

    def _rounded(self, fixed: Flags, chosen: list[int]) -> Flags:
        """What goes when the chosen do, each atom brought to a multiple."""
        gone = fixed.copy()
        gone[chosen] = True
        step = self._limits.round_to
        if step == 1:
            return gone
        for atom in self._atoms:
            size = len(atom.units)
            kept = size - int(gone[atom.units].sum())
            if kept < size:
                nearest = min(size, max(step, round(kept / step) * step))
                gone[atom.units] = np.arange(size) < size - nearest
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


def _atoms(units: Units, order: Positions) -> list[Atom]:
    """Units by who reads them, each atom's in the given order."""
    rank = np.empty(units.count, dtype=np.int64)
    rank[order] = np.arange(units.count)
    shared = units.members() > 1
    alone = {weight: own[~shared[own]] for weight, own in units.of.items()}
    readers: dict[int, dict[str, int]] = defaultdict(dict)
    for weight, own in units.of.items():
        for unit in own[shared[own]].tolist():
            readers[unit][weight] = readers[unit].get(weight, 0) + 1
    groups: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for unit, counts in readers.items():
        groups[tuple(counts.items())].append(unit)
    found = [(own, {weight: 1}) for weight, own in alone.items() if len(own)]
    found += [(np.array(own, dtype=np.int64), dict(key)) for key, own in groups.items()]
    return [Atom(own[np.argsort(rank[own])], counts) for own, counts in found]
