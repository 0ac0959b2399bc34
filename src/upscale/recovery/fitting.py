"""The fit: weights that make of what a layer reads now what it made before.

With rows X, targets T and the old weights W₀, it minimises ‖X·W + b − T‖² + λ‖W − W₀‖²: the pull
is towards the old weights, not towards zero, so that what the data says nothing about stays as it
was. How strong the pull is, a held-out share of the data decides; and where even the best fit does
worse there than the old weights do, they stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from upscale.recovery.moments import Moments

# Strengths of the pull, as shares of the mean diagonal of XᵀX; the search begins in the middle.
LADDER = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
START = 3
# The same where columns are weighed against each other: some may repeat what others carry.
DAMPING = 1e-4
# How often targets are looked for that do as well and come nearer.
ROUNDS = 4
# What stands for no variation where something has to be divided by it.
TINY = 1e-30
# How far products in single precision may be off, as a share of the largest.
ROUNDING = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A fit of a layer: weights as groups × columns × outputs, shifts, and how well they do.

    `before` and `after` are the held-out errors as shares of the target's own variation, `whole`
    are the sums over all data.
    """

    weight: Tensor
    shift: Tensor
    whole: Moments
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
    scale = variation(judged)
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
    return Fit(weight, moved, whole, LADDER[best], before, error(best))


def refine(
    found: Fit,
    fitted: Moments,
    old: Tensor,
    shift: Tensor,
    nearer: Callable[[Tensor, Tensor], tuple[Moments, Moments]],
    *,
    shifts: bool,
) -> Fit:
    """A fit made better where several targets do equally well.

    `nearer` gives the sums for the targets that come nearest to what weights make: in front of a
    ReLU, of −3 and −1 neither has to be mended to the other. Fitting to them lessens the error on
    what is fitted to, and so does taking the nearest again; the held-out part says how often.
    """

    def judged(parts: tuple[Moments, Moments], weight: Tensor, moved: Tensor) -> float:
        part = parts[1] if parts[1].count > 0 else parts[0]
        return float(part.error(weight, moved).sum() / variation(part))

    before = judged(nearer(old, shift), old, shift)
    after, nearest = torch.inf, None
    weight, moved = _solved(fitted, old, found.strength, shift, shifts=shifts)
    for _ in range(ROUNDS):
        parts = nearer(weight, moved)
        error = judged(parts, weight, moved)
        if error >= after:
            break
        after, nearest = error, parts[0] + parts[1]
        weight, moved = _solved(parts[0], old, found.strength, shift, shifts=shifts)
    if nearest is None:
        return found
    weight, moved = _solved(nearest, old, found.strength, shift, shifts=shifts)
    return replace(found, weight=weight, shift=moved, before=before, after=after)


def _solved(
    moments: Moments, old: Tensor, strength: float, shift: Tensor, *, shifts: bool
) -> tuple[Tensor, Tensor]:
    """The weights and shifts of least error for a strength of the pull."""
    # A layer that reads nothing has its shifts alone to be fitted.
    reads = old.shape[1] > 0
    weight = System.of(moments, shift, shifts=shifts).solved(old, strength) if reads else old
    if not shifts:
        return weight, shift
    n = moments.count.clamp_min(1)
    return weight, (moments.targets - (moments.inputs[:, None] @ weight).squeeze(1)) / n


@dataclass(frozen=True, slots=True, eq=False)
class System:
    """The equations of a fit: XᵀX and XᵀT, of rows and targets as the layer can move them."""

    gram: Tensor
    cross: Tensor
    largest: Tensor

    @classmethod
    def of(cls, moments: Moments, shift: Tensor, *, shifts: bool) -> System:
        """Without their means where the layer can shift; else without the shift it has."""
        largest = moments.gram.diagonal(dim1=1, dim2=2).amax(dim=1)
        if shifts:
            return cls(*moments.centred(), largest)
        cross = moments.cross - moments.inputs[:, :, None] * shift[:, None]
        return cls(moments.gram, cross, largest)

    def factor(self, strength: float) -> Tensor:
        """The Cholesky factor of XᵀX with a share of its mean diagonal added to the diagonal."""
        # Where nothing is read, nothing is known: the pull must be some number all the same.
        pull = strength * self.gram.diagonal(dim1=1, dim2=2).mean(dim=1).clamp_min(0) + TINY
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(self._added(pull))
        if bool(failed.any()):  # single precision has rounded a direction without data below zero
            factor = torch.linalg.cholesky(self._added(pull + ROUNDING * self.largest))
        return factor

    def _added(self, pull: Tensor) -> Tensor:
        eye = torch.eye(self.gram.shape[1], dtype=pull.dtype, device=pull.device)
        return self.gram + pull[:, None, None] * eye

    def solved(self, old: Tensor, strength: float) -> Tensor:
        """The weights of least error, pulled towards old ones."""
        moved: Tensor = torch.cholesky_solve(self.cross - self.gram @ old, self.factor(strength))
        return old + moved


def variation(moments: Moments) -> Tensor:
    """How much targets vary about their means, summed over all outputs."""
    n = moments.count.clamp_min(1)
    own = (moments.energy - moments.targets.square() / n).sum()
    return own.clamp_min(TINY)
