"""Sums over rows: all that a least-squares fit needs to know of its data.

For rows X (one for each output pixel) and targets T the sums XᵀX, XᵀT and ΣT² say for every weight
W how far X·W is from T, without keeping a row. They are sums over pixels, images and machines.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from upscale.recovery import processes

# The sums that targets are in.
TARGETS = ("targets", "cross", "energy")


@dataclass(slots=True, eq=False)
class Moments:
    """Sums over rows, for each group: counts, of inputs and targets, of their products."""

    count: Tensor
    inputs: Tensor
    targets: Tensor
    gram: Tensor
    cross: Tensor
    energy: Tensor

    @classmethod
    def none(cls, groups: int, columns: int, outputs: int, device: torch.device) -> Moments:
        """The sums over no rows."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        return cls(
            count=zeros(),
            inputs=zeros(groups, columns),
            targets=zeros(groups, outputs),
            gram=zeros(groups, columns, columns),
            cross=zeros(groups, columns, outputs),
            energy=zeros(groups, outputs),
        )

    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Count in rows, as groups × rows × columns, and their targets, as groups × rows × outputs.

        Products are taken in the precision of the rows, and summed in double precision.
        """
        self.count += rows.shape[1]
        self.inputs += rows.sum(dim=1)
        self.gram += rows.transpose(1, 2) @ rows
        self.add_targets(rows, targets)

    def add_targets(self, rows: Tensor, targets: Tensor) -> None:
        """Count in the targets of rows that are counted already."""
        self.targets += targets.sum(dim=1)
        self.cross += rows.transpose(1, 2) @ targets
        self.energy += targets.square().sum(dim=1)

    def without_targets(self) -> Moments:
        """The sums of the same rows, without targets yet."""
        fresh = {name: torch.zeros_like(getattr(self, name)) for name in TARGETS}
        return replace(self, **fresh)

    def __add__(self, other: Moments) -> Moments:
        names = [own.name for own in fields(self)]
        return Moments(*(getattr(self, name) + getattr(other, name) for name in names))

    def of_columns(self, columns: Tensor) -> Moments:
        """The sums of some columns alone."""
        gram, cross = self.gram[:, columns][:, :, columns], self.cross[:, columns]
        return replace(self, inputs=self.inputs[:, columns], gram=gram, cross=cross)

    def reduced(self, *names: str) -> Moments:
        """The sums over all processes, where there are several: of these, or of all."""
        for name in names or [own.name for own in fields(self)]:
            processes.summed(getattr(self, name))
        return self

    def centred(self) -> tuple[Tensor, Tensor]:
        """XᵀX and XᵀT of rows and targets without their means."""
        n = self.count.clamp_min(1)
        gram = self.gram - self.inputs[:, :, None] * self.inputs[:, None] / n
        return gram, self.cross - self.inputs[:, :, None] * self.targets[:, None] / n

    def error(self, weight: Tensor, shift: Tensor) -> Tensor:
        """Σ‖X·W + shift − T‖², for each group and output."""
        squares = (weight * (self.gram @ weight)).sum(dim=1)
        along = (self.inputs[:, None] @ weight).squeeze(1)
        return (
            squares
            + 2 * shift * along
            + self.count * shift.square()
            - 2 * (weight * self.cross).sum(dim=1)
            - 2 * shift * self.targets
            + self.energy
        ).clamp_min(0)

    def spread(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the variance of X·W, for each group and output."""
        gram, _ = self.centred()
        n = self.count.clamp_min(1)
        mean = (self.inputs[:, None] @ weight).squeeze(1) / n
        return mean, (weight * (gram @ weight)).sum(dim=1).clamp_min(0) / n
