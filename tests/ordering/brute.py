"""The best over all orders, by trying them all; shares no code with the solvers."""

import math
from collections.abc import Collection, Sequence
from itertools import permutations


def count_runs(members: Collection[int], order: Sequence[int]) -> int:
    flags = [channel in members for channel in order]
    return sum(here and not before for before, here in zip([False, *flags], flags, strict=False))


def cost_of(
    sets: Sequence[Collection[int]], weights: Sequence[float], order: Sequence[int]
) -> float:
    return math.fsum(
        weight
        for members, weight in zip(sets, weights, strict=True)
        if count_runs(members, order) > 1
    )


def least_cost(sets: Sequence[Collection[int]], weights: Sequence[float]) -> float:
    channels = sorted(set().union(*sets))
    return min(cost_of(sets, weights, order) for order in permutations(channels))
