"""One door to both solvers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from upscale.errors import OrderingError
from upscale.ordering.blocks import arrange, arrange_for
from upscale.ordering.budget import Budget
from upscale.ordering.mrap import order_by_paths
from upscale.ordering.optimal import choose
from upscale.ordering.pqtree import Node, admit, admit_all, elements, loose
from upscale.ordering.problem import (
    Family,
    Ordering,
    Sets,
    as_masks,
    as_weights,
    collapse,
    measure,
    spread,
)


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
