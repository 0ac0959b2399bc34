"""The ordering problem and its answer, as plain values."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True, slots=True)
class Family:
    """Sets over atoms: channels that every set treats alike are one atom.

    Equal sets are merged. Sets of a single atom are left out, because any order that keeps atoms
    whole keeps them contiguous. Weights are integers, so that bounds and costs compare exactly:
    the true ones times `scale`.
    """

    atoms: tuple[tuple[int, ...], ...]
    membership: NDArray[np.bool_]
    masks: tuple[int, ...]
    rows: tuple[int, ...]
    weights: tuple[int, ...]
    scale: int

    @property
    def everything(self) -> int:
        """The mask of all atoms."""
        return (1 << len(self.atoms)) - 1


def as_weights(weights: Weights | None, count: int) -> tuple[float, ...]:
    """One finite, non-negative weight a set; 1.0 each where none are given.

    >>> as_weights(None, 2)
    (1.0, 1.0)
    """
    if weights is None:
        return (1.0,) * count
    if len(weights) != count:
        raise OrderingError(f"{count} sets but {len(weights)} weights; give one weight a set")
    return tuple(_as_weight(weight, at) for at, weight in enumerate(weights))


def _as_weight(weight: float, at: int) -> float:
    try:
        number = float(weight)
    except (TypeError, ValueError):
        number = math.nan
    if math.isfinite(number) and number >= 0:
        return number
    raise OrderingError(f"weight {at} is {weight!r}; weights are finite numbers, at least 0")


def as_indices(members: Collection[int], at: int) -> NDArray[np.int64]:
    """The channels of set number `at` as an array, in no particular order."""
    try:
        indices = np.asarray(members if isinstance(members, np.ndarray) else list(members))
    except (TypeError, ValueError):
        indices = np.array("not channels")
    if not indices.size:
        return np.empty(0, np.int64)
    if indices.ndim == 1 and indices.dtype.kind in "iu":
        return indices.astype(np.int64, copy=False)
    raise OrderingError(f"set {at} holds something else than channel numbers: {members!r:.80}")


def spread(sets: Sets) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """All channels, ascending, and which set (row) holds which channel (column).

    >>> channels, membership = spread([{4, 7}, {2, 4}])
    >>> channels.tolist(), membership.astype(int).tolist()
    ([2, 4, 7], [[0, 1, 1], [1, 1, 0]])
    """
    members = [as_indices(members, at) for at, members in enumerate(sets)]
    everything = np.concatenate([*members, np.empty(0, np.int64)])
    top = int(everything.max(initial=0))
    if everything.min(initial=0) < 0 or top > 4 * len(everything) + 1024:
        channels = np.unique(everything)
        membership = np.zeros((len(sets), len(channels)), np.bool_)
        for row, indices in zip(membership, members, strict=True):
            row[np.searchsorted(channels, indices)] = True
        return channels, membership
    # Channel numbers are small as a rule, and then serve as columns themselves.
    membership = np.zeros((len(sets), top + 1), np.bool_)
    for row, indices in zip(membership, members, strict=True):
        row[indices] = True
    channels = np.flatnonzero(membership.any(axis=0))
    return channels, membership[:, channels]


def collapse(sets: Sets, weights: Weights) -> Family:
    """The family with channels of equal membership made one.

    >>> family = collapse([{0, 1, 2}, {2, 3}], [1.0, 0.5])
    >>> family.atoms, [f"{mask:03b}" for mask in family.masks]
    (((0, 1), (2,), (3,)), ['011', '110'])
    >>> family.weights, family.scale
    ((2, 1), 2)
    """
    atoms, membership = _atoms(*spread(sets))
    totals: dict[int, Fraction] = {}
    rows: dict[int, int] = {}
    for at, (mask, weight) in enumerate(zip(as_masks(membership), weights, strict=True)):
        if mask & (mask - 1):
            totals[mask] = totals.get(mask, Fraction(0)) + Fraction(weight)
            rows.setdefault(mask, at)
    scale = math.lcm(*(total.denominator for total in totals.values()))
    scaled = tuple(int(total * scale) for total in totals.values())
    return Family(atoms, membership, tuple(totals), tuple(rows.values()), scaled, scale)


def as_masks(membership: NDArray[np.bool_]) -> list[int]:
    """Each row as a bit mask of its columns.

    >>> as_masks(np.array([[True, False, True]]))
    [5]
    """
    packed = np.packbits(membership, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def _atoms(
    channels: NDArray[np.int64], membership: NDArray[np.bool_]
) -> tuple[tuple[tuple[int, ...], ...], NDArray[np.bool_]]:
    """Channels of equal membership, by their first one, and the membership of each group."""
    if not membership.size:
        return (), membership
    keys = np.packbits(membership, axis=0)
    # Sorting is stable, so the channels of a group stay ascending.
    by_membership = np.lexsort(keys)
    ordered = keys[:, by_membership]
    starts = np.flatnonzero(np.any(ordered[:, 1:] != ordered[:, :-1], axis=0)) + 1
    bounds = [0, *starts.tolist(), len(channels)]
    flat = channels[by_membership].tolist()
    groups = [tuple(flat[a:b]) for a, b in pairwise(bounds)]
    by_first = sorted(range(len(groups)), key=groups.__getitem__)
    columns = by_membership[[bounds[group] for group in by_first]]
    return tuple(groups[group] for group in by_first), membership[:, columns]


def measure(
    membership: NDArray[np.bool_], weights: Weights, columns: Sequence[int]
) -> tuple[tuple[int, ...], float]:
    """The runs of each set, and the weight of those with several, for an order of columns."""
    row = membership[:, columns]
    starts = (row[:, 1:] & ~row[:, :-1]).sum(axis=1) + row[:, :1].sum(axis=1)
    runs = tuple(starts.tolist())
    return runs, math.fsum(w for w, count in zip(weights, runs, strict=True) if count > 1)


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
