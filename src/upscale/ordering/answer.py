"""The answer to an ordering problem, and whether it is what it says. No solver is called here."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from upscale.errors import OrderingError

Sets: TypeAlias = Sequence[Collection[int]]
Weights: TypeAlias = Sequence[float]


@dataclass(frozen=True, slots=True)
class Ordering:
    """An order of channels and what it is worth.

    `contiguous` and `runs` have one entry a set. `cost` is the weight of the sets that are not
    contiguous; no order costs less than `lower_bound`.

    >>> Ordering((1, 3, 2), (True, True), (1, 1), cost=0.0, lower_bound=0.0).optimal
    True
    """

    order: tuple[int, ...]
    contiguous: tuple[bool, ...]
    runs: tuple[int, ...]
    cost: float
    lower_bound: float

    @property
    def optimal(self) -> bool:
        """Whether `cost` is proven to be the least possible."""
        return self.cost <= self.lower_bound


def check(sets: Sets, weights: Weights | None, ordering: Ordering) -> None:
    """Return quietly if `ordering` is what it says for these sets; raise `OrderingError` if not.

    The lower bound is checked for being at most the cost; that no order does better is the
    solver's proof, not this function's.

    >>> check([{0, 1}, {1, 2}], None, Ordering((0, 1, 2), (True, True), (1, 1), 0.0, 0.0))
    """
    place = {channel: at for at, channel in enumerate(ordering.order)}
    if len(place) != len(ordering.order):
        raise OrderingError("the order names a channel twice")
    wanted = {channel for members in sets for channel in members}
    if wanted != place.keys():
        missing, extra = sorted(wanted - place.keys()), sorted(place.keys() - wanted)
        raise OrderingError(f"the order lacks channels {missing} and has {extra} that no set names")
    for name, entries in (("contiguous", ordering.contiguous), ("runs", ordering.runs)):
        if len(entries) != len(sets):
            raise OrderingError(f"{name} has {len(entries)} entries for {len(sets)} sets")
    if weights is not None and len(weights) != len(sets):
        raise OrderingError(f"{len(sets)} sets but {len(weights)} weights; give one weight a set")

    paid = []
    for at, members in enumerate(sets):
        runs = _runs(members, place)
        if ordering.runs[at] != runs:
            raise OrderingError(f"set {at} lies in {runs} runs, not {ordering.runs[at]}")
        if ordering.contiguous[at] != (runs <= 1):
            raise OrderingError(f"set {at} lies in {runs} runs, yet its flag says otherwise")
        if runs > 1:
            paid.append(1.0 if weights is None else float(weights[at]))
    cost = math.fsum(paid)
    if not math.isclose(ordering.cost, cost, rel_tol=1e-9):
        raise OrderingError(f"the order costs {cost}, not {ordering.cost}")
    if not 0 <= ordering.lower_bound <= ordering.cost:
        raise OrderingError(f"lower bound {ordering.lower_bound} is not in 0..{ordering.cost}")


def _runs(members: Collection[int], place: dict[int, int]) -> int:
    places = {place[channel] for channel in members}
    return sum(at - 1 not in places for at in places)
