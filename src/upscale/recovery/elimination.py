"""Elimination: which columns a layer can do without, if the others are refitted each time.

With H = XᵀX and the best weights W, taking column c away and refitting the rest adds

    ε = tr(W_cᵀ [(H⁻¹)_cc]⁻¹ W_c)

to the error: a column that others can stand in for costs little, however large its weights are.
Then W and H⁻¹ are those of the columns left. Going on until none is left gives an order of the
columns and, for every number kept, an error: a curve. Say 0 and 2 carry nearly the same:

    >>> gram = torch.tensor([[[4.0, 0.0, 3.99], [0.0, 1.0, 0.0], [3.99, 0.0, 4.0]]])
    >>> curve = eliminate(gram.inverse(), torch.ones(1, 3, 1), 3, variation=17.0)
    >>> curve.order, [round(error, 2) for error in curve.errors]
    ((0, 1, 2), (0.0, 0.06, 1.0))

One of the two goes first, for the other stands in for it; then the smallest, and last the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Where layers are wide, this share of the columns left goes at once.
BLOCK = 1 / 64


@dataclass(frozen=True, slots=True)
class Curve:
    """The columns of a layer in the order in which they go, and the error once each is gone.

    Errors are shares of the variation of the layer's output; `errors[i]` is what remains to be
    explained when `order[: i + 1]` are gone and the rest is refitted.

    >>> Curve((2, 0, 1), (0.1, 0.4, 1.0)).kept(2)
    (0, 1)
    """

    order: tuple[int, ...]
    errors: tuple[float, ...]

    def kept(self, count: int) -> tuple[int, ...]:
        """The columns that are left when so many are."""
        return tuple(sorted(self.order[len(self.order) - count :]))

    def error(self, count: int) -> float:
        """The error with so many columns left."""
        gone = len(self.order) - count
        return self.errors[gone - 1] if gone else 0.0


def eliminate(
    inverse: Tensor, weight: Tensor, columns: int, variation: float, least: int = 0
) -> Curve:
    """The order in which columns go until `least` are left, and what it costs.

    `inverse` is that of XᵀX as groups × (columns · taps) squared; `weight` the best weights as
    groups × (columns · taps) × outputs. Groups share their columns. Errors are given as shares of
    `variation`.
    """
    groups, _, outputs = weight.shape
    taps = weight.shape[1] // columns
    left = torch.arange(columns)
    order: list[int] = []
    errors: list[float] = []
    total = 0.0
    while len(left) > least:
        count = len(left)
        own = weight.reshape(groups, count, taps, outputs)
        blocks = inverse.reshape(groups, count, taps, count, taps)
        diagonal = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)
        costs = (own * torch.linalg.solve(diagonal, own)).sum(dim=(0, 2, 3))
        going = min(max(1, int(count * BLOCK)), count - least)
        gone = costs.topk(going, largest=False).indices
        keep = torch.ones(count, dtype=torch.bool)
        keep[gone] = False
        out = (gone[:, None] * taps + torch.arange(taps)).flatten()
        stay = keep.nonzero().flatten()
        rest = (stay[:, None] * taps + torch.arange(taps)).flatten()
        across = inverse[:, rest][:, :, out]
        solved = torch.linalg.solve(inverse[:, out][:, :, out], weight[:, out])
        total += float((weight[:, out] * solved).sum())
        weight = weight[:, rest] - across @ solved
        shrunk = torch.linalg.solve(inverse[:, out][:, :, out], across.transpose(1, 2))
        inverse = inverse[:, rest][:, :, rest] - across @ shrunk
        order += left[gone].tolist()
        errors += [total / variation] * going
        left = left[stay]
    return Curve(tuple(order), tuple(errors))
