"""Counting rows: what a layer reads and should make, on all batches, as sums.

Of every batch the last fifth of the samples is held out, so there are two sums: what a fit may
see, and what it is judged by.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from upscale.recovery.moments import Moments
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, SideBySide
from upscale.recovery.sites import Norm, Site, tensor_of
from upscale.recovery.writing import site_affine

# The last share of every batch is held out; of a layer with more rows than this some are drawn.
HELD_OUT = 0.2
ROWS = 1 << 18

Parts = tuple[Moments, Moments]


@dataclass(frozen=True, slots=True)
class Counting:
    """Two networks side by side, of which `unpruned` says what layers should make."""

    beside: SideBySide
    unpruned: nn.Module

    def of_layer(self, sites: Iterable[Site], columns: Tensor) -> Parts:
        """The sums of a layer over all its calls, for some columns of its weight."""
        own = list(sites)
        weight, geometry = tensor_of(self.unpruned, own[0].weight), own[0].geometry
        groups, _, taps, outputs = geometry.as_matrix(weight).shape
        parts = self._none(groups, len(columns) * taps, outputs, weight)
        for site in own:
            self._add(site, columns, parts)
        return parts[0].reduced(), parts[1].reduced()

    def of_norm(self, norm: Norm, operand: str) -> Parts:
        """The sums of a norm, whose channels are groups of one column and one output."""
        scale = tensor_of(self.unpruned, norm.scale)
        parts = self._none(len(scale), 1, 1, scale)
        for batch in self.beside.batches:
            read = self.beside.value(PRUNED, operand, batch)
            made = self.beside.value(UNPRUNED, norm.node, batch)
            # samples × channels × … as channels × samples × places × 1
            rows, wanted = (
                _wide_enough(own).reshape(*own.shape[:2], -1, 1).transpose(0, 1)
                for own in (read, made)
            )
            self._part(batch, rows, wanted, parts)
        return parts[0].reduced(), parts[1].reduced()

    def _none(self, groups: int, columns: int, outputs: int, like: Tensor) -> Parts:
        first, second = (Moments.none(groups, columns, outputs, like.device) for _ in range(2))
        return first, second

    def _add(self, site: Site, columns: Tensor, parts: Parts) -> None:
        """Count in what one call of a layer reads, and should make, of every batch."""
        geometry, model = site.geometry, self.unpruned
        scale, shift = site_affine(model, site)
        bias = None if site.bias is None else tensor_of(model, site.bias)
        for batch in self.beside.batches:
            made = geometry.by_channel(self.beside.value(UNPRUNED, site.node, batch))
            places = self._places(*made.shape[:2])
            target = _wide_enough(made if places is None else made[:, places])
            # What the layer made holds its bias already, and the shift counts it in.
            target = target if bias is None else target - bias
            target = target * scale.to(target) + shift.to(target)
            if site.other is not None:
                for network, sign in ((UNPRUNED, 1), (PRUNED, -1)):
                    met = geometry.by_channel(self.beside.value(network, site.other, batch))
                    target = target + sign * (met if places is None else met[:, places])
            read = _wide_enough(self.beside.value(PRUNED, site.read, batch))
            rows = geometry.rows(read, columns, places).permute(2, 0, 1, 3, 4).flatten(3)
            wanted = target.unflatten(-1, (geometry.groups, -1)).permute(2, 0, 1, 3)
            self._part(batch, rows, wanted, parts)

    def _part(self, batch: int, rows: Tensor, wanted: Tensor, parts: Parts) -> None:
        """Count in rows and targets, as groups × samples × places × numbers: seen, or held out."""
        first = self._seen(rows.shape[1], batch)
        for part, own in zip(parts, (slice(None, first), slice(first, None)), strict=True):
            part.add(rows[:, own].flatten(1, 2), wanted[:, own].flatten(1, 2))

    def _seen(self, samples: int, batch: int) -> int:
        """How many samples of a batch a fit may see; of small batches every fifth is held out."""
        every = round(1 / HELD_OUT)
        if samples >= every:
            return samples - round(samples * HELD_OUT)
        return 0 if batch % every == 1 else samples

    def _places(self, samples: int, places: int) -> Tensor | None:
        """The places of an image to look at: all, or some that are drawn if there are very many."""
        wanted = -(-ROWS // max(1, samples * len(self.beside.batches)))
        if wanted >= places:
            return None
        drawn = torch.randperm(places, generator=torch.Generator().manual_seed(places))
        return drawn[:wanted].sort().values


def _wide_enough(tensor: Tensor) -> Tensor:
    """A tensor in single precision at least."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
