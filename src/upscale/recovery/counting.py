"""Counting rows: what a layer reads and should make, on all batches, as sums.

Of every batch the last fifth of the samples is held out, so there are two sums: what a fit may
see, and what it is judged by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from upscale.recovery import processes
from upscale.recovery.moments import TARGETS, Moments
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, SideBySide
from upscale.recovery.sites import Cut, Norm, Site, tensor_of
from upscale.recovery.writing import site_affine

# The last share of every batch is held out; of a layer with more rows than this some are drawn.
HELD_OUT = 0.2
ROWS = 1 << 18

Parts = tuple[Moments, Moments]


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Rows of a batch, what to make of them, and what that is added to, all by group and sample.

    A fit may see the first `seen` samples; the others are held out.
    """

    rows: Tensor
    wanted: Tensor
    met: Tensor
    seen: int

    @property
    def parts(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """What may be seen and what is held out, as groups × rows × numbers."""
        for own in (slice(None, self.seen), slice(self.seen, None)):
            rows, wanted, met = (
                x[:, own].flatten(1, 2) for x in (self.rows, self.wanted, self.met)
            )
            yield rows, wanted, met


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
            for read in self._read(site, columns):
                for part, (rows, wanted, _) in zip(parts, read.parts, strict=True):
                    part.add(rows, wanted)
        return parts[0].reduced(), parts[1].reduced()

    def allowed(
        self, site: Site, cut: Cut, columns: Tensor, parts: Parts, weight: Tensor, shift: Tensor
    ) -> Parts:
        """The same sums, for the targets nearest to what given weights make that do as well.

        What is cut off behind the layer may be anything: where the unpruned network makes −3 in
        front of a ReLU and the weights −1, nothing has to be mended.
        """
        renewed = parts[0].without_targets(), parts[1].without_targets()
        for read in self._read(site, columns):
            for part, (rows, wanted, met) in zip(renewed, read.parts, strict=True):
                made = rows @ weight.to(rows) + shift[:, None].to(rows)
                part.add_targets(rows, cut.nearest(wanted, made, met))
        return renewed[0].reduced(*TARGETS), renewed[1].reduced(*TARGETS)

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
            read = Read(rows, wanted, wanted, self._seen(rows.shape[1], batch))
            for part, (rows, wanted, _) in zip(parts, read.parts, strict=True):
                part.add(rows, wanted)
        return parts[0].reduced(), parts[1].reduced()

    def spread(self, site: Site) -> tuple[Tensor, Tensor]:
        """The mean and the variance of each channel that the pruned network's layer makes."""
        total: Moments | None = None
        for batch in self.beside.batches:
            value = self.beside.value(PRUNED, site.node, batch)
            made = _wide_enough(site.geometry.by_channel(value)).flatten(0, 1).T[:, :, None]
            total = total or Moments.none(len(made), 1, 1, made.device)
            total.add(made, made)
        assert total is not None
        total.reduced()
        mean, variance = total.spread(torch.ones_like(total.gram))
        return mean.flatten(), variance.flatten()

    def _none(self, groups: int, columns: int, outputs: int, like: Tensor) -> Parts:
        first, second = (Moments.none(groups, columns, outputs, like.device) for _ in range(2))
        return first, second

    def _read(self, site: Site, columns: Tensor) -> Iterator[Read]:
        """What one call of a layer reads, and should make, of every batch."""
        geometry, model = site.geometry, self.unpruned
        scale, shift = site_affine(model, site)
        bias = None if site.bias is None else tensor_of(model, site.bias)

        def by_group(made: Tensor) -> Tensor:
            apart: Tensor = made.unflatten(-1, (geometry.groups, -1))
            return apart.permute(2, 0, 1, 3)

        for batch in self.beside.batches:
            made = geometry.by_channel(self.beside.value(UNPRUNED, site.node, batch))
            places = self._places(*made.shape[:2])
            target = _wide_enough(made if places is None else made[:, places])
            # What the layer made holds its bias already, and the shift counts it in.
            target = target if bias is None else target - bias
            target = target * scale.to(target) + shift.to(target)
            met = torch.zeros((), dtype=target.dtype, device=target.device).expand_as(target)
            if site.other is not None:
                full, met = (
                    geometry.by_channel(self.beside.value(network, site.other, batch))
                    for network in (UNPRUNED, PRUNED)
                )
                full, met = (own if places is None else own[:, places] for own in (full, met))
                target = target + (full - met)
            read = _wide_enough(self.beside.value(PRUNED, site.read, batch))
            rows = geometry.rows(read, columns, places).permute(2, 0, 1, 3, 4).flatten(3)
            yield Read(rows, by_group(target), by_group(met), self._seen(rows.shape[1], batch))

    def _seen(self, samples: int, batch: int) -> int:
        """How many samples of a batch a fit may see; of small batches every fifth is held out."""
        every = round(1 / HELD_OUT)
        if samples >= every:
            return samples - round(samples * HELD_OUT)
        return 0 if processes.number_of(batch) % every == 1 else samples

    def _places(self, samples: int, places: int) -> Tensor | None:
        """The places of an image to look at: all, or some that are drawn if there are very many."""
        wanted = -(-ROWS // max(1, samples * self.beside.batches_of_all))
        if wanted >= places:
            return None
        drawn = torch.randperm(places, generator=torch.Generator().manual_seed(places))
        return drawn[:wanted].sort().values


def _wide_enough(tensor: Tensor) -> Tensor:
    """A tensor in single precision at least."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
