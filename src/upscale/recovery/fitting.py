"""The fit: weights that make of what a layer reads now what it made before.

With rows X, targets T and the old weights W₀, it minimises ‖X·W + b − T‖² + λ‖W − W₀‖²: the pull
is towards the old weights, not towards zero, so that what the data says nothing about stays as it
was. How strong the pull is, a held-out share of the data decides; and where even the best fit does
worse there than the old weights do, they stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from upscale.recovery.moments import Moments

# Strengths of the pull, as shares of the mean diagonal of XᵀX; the search begins in the middle.
LADDER = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
START = 3


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A fit of a layer: weights as groups × columns × outputs, shifts, and how well they do.

    `before` and `after` are the held-out errors as shares of the target's own variation.
    """

    weight: Tensor
    shift: Tensor
    strength: float
    before: float
    after: float

    @property
    def pays(self) -> bool:
        """Whether it does better on what it has not seen."""
        return self.after < self.before


def fit(fitted: Moments, held: Moments, old: Tensor, shift: Tensor, *, shifts: bool) -> Fit:
    """Fit weights to one part of the data, judge them on the other, then fit them to both.

    `shifts` says whether the layer can add a number to each output.
    """
    whole = fitted + held
    judged = held if held.count > 0 else fitted
    scale = _variation(judged)
    before = float(judged.error(old, shift).sum() / scale)
    tried: dict[int, float] = {}

    def error(step: int) -> float:
        if step not in tried:
            weight, moved = _solved(fitted, old, LADDER[step], shift, shifts=shifts)
            tried[step] = float(judged.error(weight, moved).sum() / scale)
        return tried[step]

    best = START
    for direction in (-1, 1):
        while 0 <= best + direction < len(LADDER) and error(best + direction) < error(best):
            best += direction
    weight, moved = _solved(whole, old, LADDER[best], shift, shifts=shifts)
    return Fit(weight, moved, LADDER[best], before, error(best))


def _solved(
    moments: Moments, old: Tensor, strength: float, shift: Tensor, *, shifts: bool
) -> tuple[Tensor, Tensor]:
    """The weights and shifts of least error for a strength of the pull."""
    n = moments.count.clamp_min(1)
    if shifts:
        gram, cross = moments.centred()
    else:
        gram, cross = moments.gram, moments.cross - moments.inputs[:, :, None] * shift[:, None]
    diagonal = gram.diagonal(dim1=1, dim2=2)
    # Where nothing is read, nothing is known: the pull must be some number all the same.
    pull = strength * diagonal.mean(dim=1).clamp_min(torch.finfo(gram.dtype).tiny ** 0.5)
    system = gram + torch.diag_embed(pull[:, None].expand_as(diagonal))
    factor, failed = torch.linalg.cholesky_ex(system)
    if bool(failed.any()):  # rounding made a direction without data negative
        system = system + torch.diag_embed((pull * 1e3)[:, None].expand_as(diagonal))
        factor = torch.linalg.cholesky(system)
    weight = old + torch.cholesky_solve(cross - gram @ old, factor)
    if not shifts:
        return weight, shift
    return weight, (moments.targets - (moments.inputs[:, None] @ weight).squeeze(1)) / n


def _variation(moments: Moments) -> Tensor:
    """How much targets vary about their means, summed over all outputs."""
    n = moments.count.clamp_min(1)
    own = (moments.energy - moments.targets.square() / n).sum()
    return own.clamp_min(torch.finfo(own.dtype).tiny ** 0.5)
