"""Few runs for the sets that cannot be contiguous, within the orders a tree allows.

The weighted number of runs of an order is half the length of a tour through its columns, from
an empty column and back to it, where the distance of two columns is the weight of the sets that
hold one of them and not the other. So this is a travelling salesman's problem within each node
of the tree: a nearest-neighbour path, then path reversals while they help. No bound is claimed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from upscale.ordering.pqtree import Node, Pieces, in_a_row

Columns: TypeAlias = Sequence[int] | NDArray[np.int_]

# Among more pieces than this a set that cannot be contiguous lies in dozens of runs whatever one
# does, and is gathered at run time: a rough order, refined this many pieces at a time, will do.
PIECES_AT_ONCE = 128


def arrange_for(tree: Node, membership: NDArray[np.bool_], weights: Sequence[int]) -> list[int]:
    """An order the tree allows in which the sets of `membership` (rows) lie in few runs.

    >>> from upscale.ordering.pqtree import loose
    >>> sets = np.array([[1, 0, 1, 0], [0, 1, 0, 1]], dtype=bool)
    >>> arrange_for(loose(0b1111), sets, [1, 1])
    [0, 2, 1, 3]
    """
    # Whole numbers whose sums stay below 2**24 make every distance exact, however it is summed.
    finest = (1 << 22) // len(weights)
    dearest = max([*weights, 1])
    prices = np.array([max(1, weight * finest // dearest) for weight in weights], np.float32)
    columns = membership.T.astype(np.float32)
    salesman = _Salesman(columns, prices)
    order = in_a_row(tree, salesman.turn, salesman.link)
    return order if order[0] < order[-1] else order[::-1]


class _Salesman:
    def __init__(self, columns: NDArray[np.float32], prices: NDArray[np.float32]) -> None:
        self.columns = np.vstack([columns, np.zeros_like(columns[:1])])
        self.priced = self.columns * prices
        self.sizes = self.priced.sum(axis=1)

    def distances(self, here: Columns, there: Columns) -> NDArray[np.float32]:
        """Weight of the sets that hold one column and not the other; -1 is the empty column."""
        # Not `@`: on a busy machine BLAS threads wait for each other longer than this takes.
        shared = np.einsum("ik,kj->ij", self.priced[here], self.columns[there].T.copy())
        apart: NDArray[np.float32] = self.sizes[here][:, None] + self.sizes[there] - 2 * shared
        return apart

    def turn(self, pieces: Pieces) -> Pieces:
        """Each piece forwards or backwards, whichever makes the row shortest."""
        cost = [0.0, 0.0]
        came: list[tuple[int, int]] = []
        ends = [-1, -1]
        for piece in [*pieces, [-1]]:
            step = self.distances(ends, [piece[0], piece[-1]])
            totals = [[cost[a] + float(step[a, b]) for a in (0, 1)] for b in (0, 1)]
            came.append((int(totals[0][1] < totals[0][0]), int(totals[1][1] < totals[1][0])))
            cost = [min(totals[0]), min(totals[1])]
            ends = [piece[-1], piece[0]]
        way = 0
        turned = []
        for piece, before in zip(reversed(pieces), reversed(came[1:]), strict=True):
            way = before[way]
            turned.append(piece[::-1] if way else piece)
        return turned[::-1]

    def link(self, pieces: Pieces) -> Pieces:
        """The pieces in a row, each either way round, such that neighbours are alike."""
        pieces = sorted(pieces)
        if len(pieces) == 1:
            return pieces
        if len(pieces) <= PIECES_AT_ONCE:
            return self._path(pieces, -1, refine=True)
        row: Pieces = []
        ranked = self._by_gray_code(pieces)
        for at in range(0, len(ranked), PIECES_AT_ONCE):
            last = row[-1][-1] if row else -1
            row += self._path(ranked[at : at + PIECES_AT_ONCE], last, refine=False)
        return row

    def _by_gray_code(self, pieces: Pieces) -> Pieces:
        """Pieces as a Gray code counts them, the most valuable set as its first digit."""
        heads = self.columns[[piece[0] for piece in pieces]]
        digits = heads[:, np.argsort(-self.priced.max(axis=0), kind="stable")].astype(np.bool_)
        # A digit of the count is the parity of the Gray code's digits up to it.
        rank = np.logical_xor.accumulate(digits, axis=1)
        return [pieces[at] for at in np.lexsort(rank.T[::-1])]

    def _path(self, pieces: Pieces, start: int, *, refine: bool) -> Pieces:
        # Ends 2i and 2i + 1 are the head and the tail of piece i; the last two are the borders.
        ends = [end for piece in pieces for end in (piece[0], piece[-1])] + [start, -1]
        distinct, numbers = np.unique(ends, return_inverse=True)
        far = self.distances(distinct, distinct)[numbers[:, None], numbers]
        border = len(ends) - 2
        free = np.zeros(len(ends), np.float32)
        free[border:] = np.inf
        entered = []
        at = border
        for _ in pieces:
            into = int(np.argmin(far[at] + free))
            entered.append(into)
            free[into] = free[into ^ 1] = np.inf
            at = into ^ 1
        if refine:
            entered = _reverse_while_shorter(far, entered, border)
        return [pieces[end // 2][:: -1 if end & 1 else 1] for end in entered]


def _reverse_while_shorter(far: NDArray[np.float32], entered: list[int], border: int) -> list[int]:
    """Reverse stretches of the path, the most rewarding first, a piece at most once on average."""
    into = np.array([*entered, border + 1])
    for _ in entered:
        out = np.array([border, *(into[:-1] ^ 1)])
        link = far[out, into]
        # Reversing what lies between links i and j joins their two outs and their two intos.
        joined = far[out[:, None], out] + far[into[:, None], into]
        gain = np.triu(link[:, None] + link - joined, 1)
        i, j = divmod(int(np.argmax(gain)), len(link))
        if gain[i, j] <= 0:
            break
        into[i:j] = into[i:j][::-1] ^ 1
    return [int(end) for end in into[:-1]]
