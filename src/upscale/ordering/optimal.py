"""The heaviest subfamily that can be contiguous, with a bound on every other.

Components of the overlap graph are searched one by one, each by branch and bound: `search.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from upscale.ordering.budget import Budget
from upscale.ordering.conflicts import components, find_triples, overlaps, tabulate
from upscale.ordering.pqtree import admit_all, elements, loose, union
from upscale.ordering.search import Search


@dataclass(frozen=True, slots=True)
class Choice:
    """Sets that can be contiguous together, as a mask; any others give up at least `bound`."""

    kept: int
    bound: int


def choose(sets: Sequence[int], weights: Sequence[int], budget: Budget) -> Choice:
    """The subfamily to keep; the weights are positive integers.

    >>> choose([0b011, 0b110, 0b101], [3, 2, 4], Budget(1.0))
    Choice(kept=5, bound=2)
    """
    near = overlaps(sets)
    budget.spend(len(sets) ** 2 // 8)
    kept = bound = 0
    for component in components(near):
        members = list(elements(component))
        own = [sets[at] for at in members]
        if admit_all(loose(union(own)), own) is not None:
            kept |= component
            continue
        conflicts = find_triples(sets, near, component, budget)
        degree = Counter(chain.from_iterable(conflicts))
        # Few conflicts for much weight come first: so the packing spreads its charges.
        members.sort(key=lambda at: degree[at] / weights[at])
        place = {at: number for number, at in enumerate(members)}
        table = tabulate(((place[i], place[j], place[k]) for i, j, k in conflicts), len(members))
        search = Search([sets[at] for at in members], [weights[at] for at in members], table)
        bound += search.run(budget)
        kept |= sum(1 << members[number] for number in elements(search.best))
    return Choice(kept, bound)
