"""A lower bound on what must be given up, from conflicts that compete for few sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from upscale.ordering.pqtree import elements


@dataclass(frozen=True, slots=True)
class Packing:
    """At least `bound` weight of the open sets must go; `slack` is each set's unused weight.

    This is a dual solution: to give up a set on top costs its slack on top of the bound.
    """

    bound: int
    slack: list[int]
    idle: int


def pack(
    weights: Sequence[int],
    kept: int,
    open_: int,
    pairs: Sequence[int],
    triples: Sequence[Sequence[int]],
    learnt: Sequence[int],
) -> Packing:
    """Charge conflicts among `open_` sets to their weights until none can be charged further.

    `pairs` are conflicts given what is kept, `triples` and `learnt` those of the family. Sets
    that conflict two by two leave room for one, three by three for two: such a clique of `n`
    costs the least weight among it `n - 1` or `n - 2` times. Sets are tried by number; number
    them with few conflicts first and the charges spread well.

    >>> all_in_conflict = [[0, 4, 2], [4, 0, 1], [2, 1, 0]]
    >>> pack([5, 2, 4], 0, 0b111, [0, 0, 0], all_in_conflict, []).bound
    2
    """
    slack = list(weights)
    idle = open_
    bound = 0

    def charge(clique: list[int], room: int) -> None:
        nonlocal idle, bound
        # What is left of a clique without its exhausted members is one too.
        clique.sort(key=slack.__getitem__)
        charged = 0
        for at in range(len(clique) - room):
            more = slack[clique[at]] - charged
            bound += more * (len(clique) - room - at)
            charged += more
        for member in clique:
            slack[member] -= min(charged, slack[member])
            if not slack[member]:
                idle &= ~(1 << member)

    for first in elements(open_):
        rivals = pairs[first]
        while idle >> first & 1 and rivals & idle:
            clique, fitting = [first], rivals & idle
            while fitting:
                member = (fitting & -fitting).bit_length() - 1
                clique.append(member)
                fitting &= pairs[member]
            charge(clique, 1)

    for first in elements(idle):
        row = triples[first]
        for second in elements(idle & ~((2 << first) - 1)):
            while idle >> first & 1 and idle >> second & 1 and row[second] & idle:
                clique, fitting = [first, second], row[second] & idle
                while fitting:
                    member = (fitting & -fitting).bit_length() - 1
                    for other in clique:
                        fitting &= triples[other][member]
                    clique.append(member)
                charge(clique, 2)
            if not idle >> first & 1:
                break

    for conflict in learnt:
        rest = conflict & ~kept
        if rest & ~idle == 0:
            charge(list(elements(rest)), rest.bit_count() - 1)
    return Packing(bound, slack, idle)
