"""Branch and bound over what to keep of one family in conflict.

A state keeps some sets, gave up others, and has the rest open. Conflicts among the open sets
are packed for a lower bound. The sets that the packing leaves with slack are admitted to the
tree of the kept ones: either that succeeds and is completed to an answer, or it yields a
conflict not known before, and the bound rises. Where bound and answer do not meet, one set is
decided both ways. The state of least bound comes next, so the bound of the whole search is that
of the next state at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain

from upscale.ordering.budget import Budget
from upscale.ordering.conflicts import components, find_triples, overlaps, small_conflict, tabulate
from upscale.ordering.packing import Packing, pack
from upscale.ordering.pqtree import Node, admit, admit_all, elements, loose, union


@dataclass(frozen=True, slots=True)
class State:
    """Sets kept, sets still open, the weight given up, the orders that remain.

    `pairs` are the conflicts of two open sets given the kept ones.
    """

    kept: int
    open: int
    cost: int
    tree: Node
    pairs: tuple[int, ...]


class Search:
    """The search for one component; `best` is the mask of the best subfamily known so far."""

    def __init__(
        self, sets: Sequence[int], weights: Sequence[int], triples: list[list[int]]
    ) -> None:
        self.sets = sets
        self.weights = weights
        self.triples = triples
        self.learnt: list[int] = []
        self.best = 0
        self.best_cost = sum(weights)
        count = len(sets)
        self.heaviest = sorted(range(count), key=lambda at: -weights[at])
        self.root = State(0, (1 << count) - 1, 0, loose(union(sets)), (0,) * count)

    def run(self, budget: Budget) -> int:
        """Improve `best` until it is optimal or the budget is spent; return a lower bound."""
        self._offer(self.root.tree, 0, self.heaviest, budget)
        queue: list[tuple[int, int, int, State]] = []
        serial = 0
        states = [(0, self.root)]
        while True:
            for bound, state in states:
                serial += 1
                undecided = state.open.bit_count()
                heappush(queue, (max(bound, state.cost), undecided, serial, state))
            if not queue or queue[0][0] >= self.best_cost:
                return self.best_cost
            if budget.exhausted and serial > 1:
                return queue[0][0]
            states = self._explore(heappop(queue)[3], budget)
            if serial == 1 and states:
                self._improve(budget)

    def _explore(self, state: State, budget: Budget) -> list[tuple[int, State]]:
        """The states to look at instead of this one, each with a lower bound."""
        while True:
            state = self._propagate(state)
            packing = self._pack(state, budget)
            bound = state.cost + packing.bound
            if bound >= self.best_cost:
                return []
            if self._complete(state, packing, budget):
                if budget.exhausted:
                    return [(bound, state)]
                continue  # the new conflict raises the bound
            if bound >= self.best_cost:
                return []
            gap = self.best_cost - bound
            sure = [at for at in elements(state.open) if packing.slack[at] >= gap]
            if not sure:
                break
            for at in sure:
                if state.open >> at & 1:
                    state = self._keep(state, at, budget)
        branch = (state.open & ~packing.idle).bit_length() - 1
        return [
            (bound, self._keep(state, branch, budget)),
            (bound, self._give_up(state, 1 << branch)),
        ]

    def _pack(self, state: State, budget: Budget) -> Packing:
        budget.spend(10 + state.open.bit_count() ** 2 // 6 + len(self.learnt) // 8)
        return pack(self.weights, state.kept, state.open, state.pairs, self.triples, self.learnt)

    def _propagate(self, state: State) -> State:
        """Give up the last open set of every conflict whose other sets are kept."""
        for conflict in self.learnt:
            rest = conflict & ~state.kept
            if rest & (rest - 1) == 0 and rest & state.open:
                state = self._give_up(state, rest)
        return state

    def _give_up(self, state: State, given_up: int) -> State:
        lost = sum(self.weights[at] for at in elements(given_up))
        return State(state.kept, state.open & ~given_up, state.cost + lost, state.tree, state.pairs)

    def _keep(self, state: State, at: int, budget: Budget) -> State:
        tree = self._admit(state.tree, at, budget)
        if tree is None:
            self._learn([*elements(state.kept), at], budget)
            return self._give_up(state, 1 << at)
        state = self._give_up(state, state.pairs[at] & state.open)
        clashes = self.triples[at]
        pairs = tuple([known | new for known, new in zip(state.pairs, clashes, strict=True)])
        return State(state.kept | 1 << at, state.open & ~(1 << at), state.cost, tree, pairs)

    def _complete(self, state: State, packing: Packing, budget: Budget) -> bool:
        """Turn the packing into an answer, or say that it hid a conflict, now learnt."""
        tree = state.tree
        kept = state.kept
        for at in elements(packing.idle):
            admitted = self._admit(tree, at, budget)
            if admitted is None:
                self._learn([*elements(kept), at], budget)
                return True
            tree, kept = admitted, kept | 1 << at
        self._offer(tree, kept, range(len(self.sets)), budget)
        return False

    def _offer(self, tree: Node, kept: int, order: Iterable[int], budget: Budget) -> None:
        """Complete `kept` greedily; remember the answer if it is the best so far."""
        for at in order:
            if not kept >> at & 1:
                admitted = self._admit(tree, at, budget)
                if admitted is not None:
                    tree, kept = admitted, kept | 1 << at
        cost = sum(self.weights[at] for at in range(len(self.sets)) if not kept >> at & 1)
        if cost < self.best_cost:
            self.best, self.best_cost = kept, cost

    def _improve(self, budget: Budget) -> None:
        """Force in what the best answer gave up, one set at a time, while that helps."""
        improved = True
        while improved:
            before = self.best_cost
            for at in self.heaviest:
                if budget.exhausted:
                    return
                if not self.best >> at & 1:
                    others = sorted(self.heaviest, key=lambda other: not self.best >> other & 1)
                    self._offer(self.root.tree, 0, [at, *others], budget)
            improved = self.best_cost < before

    def _admit(self, tree: Node, at: int, budget: Budget) -> Node | None:
        budget.spend(8 + len(self.sets) // 16)
        return admit(tree, self.sets[at])

    def _learn(self, family: list[int], budget: Budget) -> None:
        self.learnt.append(small_conflict(self.sets, family, budget))


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
