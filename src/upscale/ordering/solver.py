"""One door to both solvers: sets and weights in, an order with its proof out."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from upscale.errors import OrderingError
from upscale.ordering.answer import Ordering, Sets, Weights
from upscale.ordering.blocks import arrange_for
from upscale.ordering.budget import Budget
from upscale.ordering.mrap import order_by_paths
from upscale.ordering.optimal import choose
from upscale.ordering.pqtree import Node, admit, admit_all, arrange, elements, loose


def solve(
    sets: Sets,
    weights: Sequence[float] | None = None,
    *,
    method: str = "optimal",
    time_limit: float = 1.0,
) -> Ordering:
    """The order of channels that makes the most weight contiguous, and its proof.

    Parameters
    ----------
    sets
        The channels each consumer reads.
    weights
        What it costs if a set is not contiguous; 1.0 each where none are given.
    method
        `"optimal"`, or `"mrap"` for the paper's search.
    time_limit
        Seconds, counted in steps of work, so that equal inputs give equal answers on a busy
        machine too; a slow one may take longer.

    Returns
    -------
    Ordering
        Every channel once, least in cost if `optimal`; else `lower_bound` says how far off it
        can be. Among orders of equal cost it looks for few weighted runs, then for low channels
        first.

    Raises
    ------
    OrderingError
        If weights, sets or method are malformed.

    Examples
    --------
    >>> solve([{0, 1}, {1, 2}, {0, 2}], weights=[4.0, 2.0, 3.0])
    Ordering(order=(1, 0, 2), contiguous=(True, False, True), runs=(1, 2, 1), cost=2.0, \
lower_bound=2.0)
    """
    checked = as_weights(weights, len(sets))
    if not 0 <= time_limit < float("inf"):
        raise OrderingError(f"time_limit is {time_limit}; it is a number of seconds, at least 0")
    if method == "optimal":
        return _optimal(sets, checked, time_limit)
    if method == "mrap":
        return _mrap(sets, checked, time_limit)
    raise OrderingError(f"unknown method {method!r}; use 'optimal' or 'mrap'")


def _optimal(sets: Sets, weights: tuple[float, ...], time_limit: float) -> Ordering:
    family = collapse(sets, weights)
    anything = loose(family.everything)
    whole = admit_all(anything, family.masks)
    if whole is not None:
        return _answer(family, weights, arrange(whole), 0)
    costly = [at for at, weight in enumerate(family.weights) if weight]
    choice = choose(
        [family.masks[at] for at in costly],
        [family.weights[at] for at in costly],
        Budget(time_limit),
    )
    tree, rest = _admit_greedily(anything, family, [costly[at] for at in elements(choice.kept)])
    membership = family.membership[[family.rows[at] for at in rest]]
    arrangement = arrange_for(tree, membership, [family.weights[at] for at in rest])
    found = _answer(family, weights, arrangement, choice.bound)
    if found.optimal:
        return found
    paths = _mrap(sets, weights, time_limit)
    return replace(paths, lower_bound=found.lower_bound) if paths.cost < found.cost else found


def _mrap(sets: Sets, weights: tuple[float, ...], time_limit: float) -> Ordering:
    channels, membership = spread(sets)
    # A tenth, so that the optimal solver can afford the same search and never does worse.
    columns = order_by_paths(as_masks(membership), Budget(time_limit / 10))
    runs, cost = measure(membership, weights, columns)
    order = tuple(channels[columns].tolist())
    return Ordering(order, tuple(count <= 1 for count in runs), runs, cost, 0.0)


def _answer(family: Family, weights: tuple[float, ...], atoms: list[int], bound: int) -> Ordering:
    runs, cost = measure(family.membership, weights, atoms)
    contiguous = tuple(count <= 1 for count in runs)
    order = tuple(channel for atom in atoms for channel in family.atoms[atom])
    given_up = sum(
        weight
        for weight, row in zip(family.weights, family.rows, strict=True)
        if not contiguous[row]
    )
    proven = cost if given_up == bound else bound / family.scale
    return Ordering(order, contiguous, runs, cost, proven)


def _admit_greedily(tree: Node, family: Family, first: list[int]) -> tuple[Node, list[int]]:
    """The tree with these sets and whichever others fit, and the sets that do not."""
    refused = []
    for at in dict.fromkeys([*first, *range(len(family.masks))]):
        admitted = admit(tree, family.masks[at])
        if admitted is None:
            refused.append(at)
        else:
            tree = admitted
    return tree, refused


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


def _as_indices(members: Collection[int], at: int) -> NDArray[np.int64]:
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
    members = [_as_indices(members, at) for at, members in enumerate(sets)]
    everything = np.concatenate([*members, np.empty(0, np.int64)])
    channels, columns = np.unique(everything, return_inverse=True)
    membership = np.zeros((len(sets), len(channels)), np.bool_)
    membership[np.repeat(np.arange(len(sets)), [len(own) for own in members]), columns] = True
    return channels, membership


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
