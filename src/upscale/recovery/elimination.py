"""Elimination: which columns a layer can do without, if the others are refitted each time.

With H = XᵀX and the best weights W, taking column c away and refitting the rest adds

    ε = tr(W_cᵀ [(H⁻¹)_cc]⁻¹ W_c)

to the error: a column that others can stand in for costs little, however large its weights are.
Then W and H⁻¹ are those of the columns left. Going on until none is left gives an order of the
columns and, for every number kept, an error: a curve. Say 0 and 2 carry nearly the same:

    >>> gram = torch.tensor([[[4.0, 0.0, 3.99], [0.0, 1.0, 0.0], [3.99, 0.0, 4.0]]])
    >>> curve = eliminate(gram.inverse(), torch.ones(1, 3, 1), 3, variation=17.0)
    >>> curve.order, [round(error, 2) for error in curve.errors]
    ((0, 1, 2), [0.0, 0.06, 1.0])

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

    Errors are what the model's outputs move by, as a share of what they vary by: `errors[i]` when
    `order[: i + 1]` are gone and the rest is refitted.

    >>> Curve((2, 0, 1), (0.1, 0.4, 1.0)).kept(2)
    (0, 1)
    """

    order: tuple[int, ...]
    errors: tuple[float, ...]

    def kept(self, count: int) -> tuple[int, ...]:
        """The columns that are left when so many are."""
        return tuple(sorted(self.order[len(self.order) - count :]))

    @property
    def costs(self) -> tuple[float, ...]:
        """What each column costs when it goes; later ones no less than those before.

        >>> Curve((2, 0, 1), (0.1, 0.4, 1.0)).costs
        (0.30000000000000004, 0.6, 0.1)
        """
        costs, most, before = [0.0] * len(self.order), 0.0, 0.0
        for column, error in zip(self.order, self.errors, strict=True):
            most, before = max(most, error - before), error
            costs[column] = most
        return tuple(costs)

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
    outputs, taps = weight.shape[2], weight.shape[1] // columns
    inverse, weight = inverse.clone(), weight.clone()
    within = torch.arange(taps, device=weight.device)
    left = torch.ones(columns, dtype=torch.bool, device=weight.device)
    order: list[int] = []
    errors: list[float] = []
    total = 0.0
    while (count := columns - len(order)) > least:
        going = min(max(1, int(count * BLOCK)), count - least)
        gone = _costs(inverse, weight, left).topk(going, largest=False).indices
        left[gone] = False
        out = (gone[:, None] * taps + within).flatten()
        # What is left is as it was, less what went along with the columns that go; their own rows
        # and columns come to nothing by this.
        across = inverse[:, :, out]
        solved = torch.linalg.solve(
            inverse[:, out][:, :, out], torch.cat([weight[:, out], across.transpose(1, 2)], dim=2)
        )
        more = float((weight[:, out] * solved[:, :, :outputs]).sum())
        weight.baddbmm_(across, solved[:, :, :outputs], alpha=-1)
        inverse.baddbmm_(across, solved[:, :, outputs:], alpha=-1)
        order += gone.tolist()
        # Of columns that go at once, each has its part.
        errors += [(total + more * at / going) / variation for at in range(1, going + 1)]
        total += more
    return Curve(tuple(order), tuple(errors))


def _costs(inverse: Tensor, weight: Tensor, left: Tensor) -> Tensor:
    """What each column adds to the error if it goes next; of those gone already, more than all."""
    groups, width, outputs = weight.shape
    columns, taps = len(left), width // len(left)
    own = weight.reshape(groups, columns, taps, outputs)[:, left]
    blocks = inverse.reshape(groups, columns, taps, columns, taps)
    diagonal = blocks.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)[:, left]
    costs = torch.full((columns,), torch.inf, dtype=weight.dtype, device=weight.device)
    costs[left] = (own * torch.linalg.solve(diagonal, own)).sum(dim=(0, 2, 3))
    return costs
