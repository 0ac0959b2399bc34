"""Which sets cannot be contiguous together.

Two sets always can. Sets that overlap (share something, and neither holds the other) form the
edges of a graph, and a family can be contiguous exactly when each of the graph's components can
(Fulkerson and Gross, 1965). So every minimal conflict lies within one component, and a conflict
of three needs three sets that overlap pairwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

from upscale.ordering.budget import Budget
from upscale.ordering.pqtree import admit, admit_all, elements, loose, union


def overlaps(sets: Sequence[int]) -> list[int]:
    """For each set the mask of the sets that overlap it.

    >>> overlaps([0b0011, 0b0110, 0b0111])
    [2, 1, 0]
    """
    near = [0] * len(sets)
    for i, a in enumerate(sets):
        for j in range(i):
            shared = a & sets[j]
            if shared and shared != a and shared != sets[j]:
                near[i] |= 1 << j
                near[j] |= 1 << i
    return near


def components(near: Sequence[int]) -> list[int]:
    """The connected components of an overlap graph, as masks of sets.

    >>> components([0b010, 0b001, 0b000])
    [3, 4]
    """
    found = []
    unseen = (1 << len(near)) - 1
    while unseen:
        component = frontier = unseen & -unseen
        while frontier:
            frontier = union(near[at] for at in elements(frontier)) & ~component
            component |= frontier
        found.append(component)
        unseen &= ~component
    return found


def find_triples(
    sets: Sequence[int], near: Sequence[int], component: int, budget: Budget
) -> list[tuple[int, int, int]]:
    """The conflicts of three sets of a component, all or as many as the budget allows.

    Three sets conflict when each two share something the third lacks, or when all three share
    something and each has something of its own: Tucker's two forbidden matrices of three rows.
    Half the budget at most goes into this.

    >>> sets = [0b011, 0b110, 0b101]
    >>> find_triples(sets, overlaps(sets), 0b111, Budget(1.0))
    [(2, 1, 0)]
    """
    found: list[tuple[int, int, int]] = []
    reserve = budget.steps // 2
    for i in elements(component):
        a = sets[i]
        for j in elements(near[i] & ((1 << i) - 1)):
            if budget.steps < reserve:
                return found
            b = sets[j]
            both, only_a, only_b, either = a & b, a & ~b, b & ~a, a | b
            rivals = near[i] & near[j] & ((1 << j) - 1)
            known = len(found)
            for k in elements(rivals):
                c = sets[k]
                if (only_a & c and only_b & c and both & ~c) or (
                    both & c and c & ~either and only_a & ~c and only_b & ~c
                ):
                    found.append((i, j, k))
            # One found costs about twice a look, because it is tabulated later.
            budget.spend(1 + rivals.bit_count() + 2 * (len(found) - known))
    return found


def tabulate(triples: Iterable[tuple[int, int, int]], count: int) -> list[list[int]]:
    """`table[i][j]` is the mask of all `k` such that `i`, `j`, `k` are in conflict.

    >>> tabulate([(2, 1, 0)], 3)
    [[0, 4, 2], [4, 0, 1], [2, 1, 0]]
    """
    table = [[0] * count for _ in range(count)]
    for triple in triples:
        for i, j, k in permutations(triple):
            table[i][j] |= 1 << k
    return table


def small_conflict(sets: Sequence[int], family: Iterable[int], budget: Budget) -> int:
    """A conflict among `family` (indices of sets, in conflict), minimal if the budget allows.

    >>> bin(small_conflict([0b0011, 0b1111, 0b0110, 0b0101], [0, 1, 2, 3], Budget(1.0)))
    '0b1101'
    """
    candidates = list(family)
    everything = union(sets[at] for at in candidates)
    found: list[int] = []
    while not budget.exhausted:
        count = len(found) + len(candidates)
        budget.spend(count * (8 + count // 8))
        tree = admit_all(loose(everything), (sets[at] for at in found))
        if tree is None:
            return _mask(found)
        for place, at in enumerate(candidates):
            admitted = admit(tree, sets[at])
            if admitted is None:
                # What came before, this one and those found already are enough for a conflict.
                found.append(at)
                candidates = candidates[:place]
                break
            tree = admitted
    return _mask([*found, *candidates])


def _mask(members: Iterable[int]) -> int:
    return sum(1 << member for member in members)
