"""Refitting: one pass over a captured model in which every layer is fitted when it is met.

A site with its norm computes z = a · (W x) + d. It is fitted as one: W̃ and b̃ that make z of what
the pruned network reads. What is written back keeps every parameter: the layer gets W̃ scaled to
the size that its weights had, the norm the statistics of what the layer now makes, and scale and
shift that undo both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from upscale.recovery.elimination import eliminate
from upscale.recovery.fitting import Fit, fit
from upscale.recovery.moments import Moments
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, SideBySide
from upscale.recovery.sites import Norm, Site, tensor_of

# Of every batch the last share is held out; more places than this of a layer are drawn from.
HELD_OUT = 0.2
ROWS = 262_144


@dataclass(frozen=True, slots=True)
class Refitted:
    """What became of one layer: its error as a share of its output's variation, held out."""

    layer: str
    before: float
    after: float
    strength: float | None
    left: str = ""


@dataclass(slots=True)
class Refitting:
    """The pass over all nodes; `kept` are the columns of weights that the selection keeps."""

    beside: SideBySide
    models: Mapping[str, nn.Module]
    sites: Mapping[str, Site]
    norms: Mapping[str, Norm]
    kept: Mapping[str, tuple[int, ...]]
    held: frozenset[str]
    tell: Callable[[int, int, str], None]
    rounds: int = 1
    counts: Mapping[str, int] = field(default_factory=dict)
    chosen: dict[str, tuple[int, ...]] = field(default_factory=dict)
    results: list[Refitted] = field(default_factory=list)

    def run(self) -> None:
        """Run both networks, and fit what can be."""
        calls = Counter(site.weight for site in self.sites.values())
        behind = {site.norm.node for site in self.sites.values() if site.norm is not None}
        for at, node in enumerate(self.beside.nodes):
            if node.op == "output":
                break
            self.beside.run(UNPRUNED, node)
            site = self.sites.get(node.name)
            pruned = site is not None and (site.weight in self.kept or site.weight in self.counts)
            masked = node.op == "call_module" and str(node.target) in self.held
            if self.beside.differs(node) or pruned or masked:
                self.beside.diverge(node)
                if site is not None and calls[site.weight] == 1:
                    self._fit(site)
                elif node.name in self.norms and node.name not in behind:
                    self._fit_norm(self.norms[node.name], node)
                self.beside.run(PRUNED, node)
            self.beside.forget(at)
            self.tell(at + 1, len(self.beside.nodes), node.name)

    def _fit(self, site: Site) -> None:
        model = self.models[PRUNED]
        weight = tensor_of(model, site.weight)
        columns = self._columns(site, weight)
        matrix = site.geometry.as_matrix(weight.detach().double())
        groups, _, taps, outputs = matrix.shape
        scale, shift = self._affine(PRUNED, site, groups, outputs)
        old = matrix[:, columns].reshape(groups, -1, outputs) * scale[:, None]
        found: Fit | None = None
        if site.weight in self.counts:
            columns = self._choose(site, columns, matrix, scale, shift)
            old = matrix[:, columns].reshape(groups, -1, outputs) * scale[:, None]
            _set(weight, site.geometry.as_weight(_only(matrix, columns), weight))
        for turn in range(self.rounds if site.rectified else 1):
            parts = self._moments(site, columns, taps, outputs, found)
            now = fit(*parts, old, shift, shifts=site.norm is not None or site.bias is not None)
            if found is not None and turn and not now.pays:
                break
            found = now
        assert found is not None
        if found.pays:
            self._write(site, columns, found, parts[0] + parts[1])
        self.results.append(
            Refitted(site.weight, found.before, found.after, found.strength, "" if found.pays else "no better")
        )

    def _choose(self, site: Site, columns: Tensor, matrix: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        groups, _, taps, outputs = matrix.shape
        old = matrix.reshape(groups, -1, outputs) * scale[:, None]
        parts = self._moments(site, columns, taps, outputs, None)
        shifts = site.norm is not None or site.bias is not None
        found = fit(*parts, old, shift, shifts=shifts)
        whole = parts[0] + parts[1]
        gram = whole.centred()[0] if shifts else whole.gram
        pull = max(found.strength, 1e-4) * gram.diagonal(dim1=1, dim2=2).mean(dim=1)
        gram = gram + torch.diag_embed(pull[:, None].expand(-1, gram.shape[1]).clamp_min(1e-12))
        curve = eliminate(gram, found.weight, len(columns), least=self.counts[site.weight])
        kept = curve.kept(self.counts[site.weight])
        self.chosen[site.weight] = kept
        return torch.tensor(kept, dtype=torch.long)

    def _columns(self, site: Site, weight: Tensor) -> Tensor:
        axis = 0 if site.geometry.transposed else 1
        count = weight.shape[axis] // (site.geometry.groups if site.geometry.transposed else 1)
        return torch.tensor(self.kept.get(site.weight, range(count)), dtype=torch.long)

    def _affine(self, network: str, site: Site, groups: int, outputs: int) -> tuple[Tensor, Tensor]:
        """What a layer's norm multiplies and adds; the layer's own bias is part of it."""
        model = self.models[network]
        bias = None if site.bias is None else tensor_of(model, site.bias).detach().double()
        if site.norm is None:
            scale = torch.ones(groups * outputs, dtype=torch.float64)
            shift = torch.zeros_like(scale) if bias is None else bias
        else:
            scale, shift = affine(model, site.norm)
            shift = shift if bias is None else shift + scale * bias
        return scale.reshape(groups, outputs), shift.reshape(groups, outputs)

    def _moments(
        self, site: Site, columns: Tensor, taps: int, outputs: int, found: Fit | None
    ) -> tuple[Moments, Moments]:
        groups = site.geometry.groups
        parts = [Moments.none(groups, len(columns) * taps, outputs) for _ in range(2)]
        scale, shift = self._affine(UNPRUNED, site, groups, outputs)
        bias = None if site.bias is None else tensor_of(self.models[UNPRUNED], site.bias)
        for batch in self.beside.batches:
            made = site.geometry.by_channel(self.beside.value(UNPRUNED, site.node, batch))
            places = self._places(made.shape[0], made.shape[1])
            read = self.beside.value(PRUNED, site.read, batch)
            rows = site.geometry.rows(read, columns, places)
            target = made if places is None else made[:, places]
            target = target if bias is None else target - bias
            target = target * scale.flatten().to(target) + shift.flatten().to(target)
            if site.other is not None:
                lost = [
                    site.geometry.by_channel(self.beside.value(network, site.other, batch))
                    for network in (UNPRUNED, PRUNED)
                ]
                lost = lost if places is None else [own[:, places] for own in lost]
                target = target + (lost[0] - lost[1])
            samples = len(target)
            flat = rows.permute(2, 0, 1, 3, 4).reshape(groups, samples, -1, len(columns) * taps)
            wanted = target.unflatten(-1, (groups, outputs)).permute(2, 0, 1, 3)
            if site.rectified and found is not None:
                own = flat @ found.weight.to(flat)[:, None] + found.shift.to(flat)[:, None, None]
                if site.other is not None:
                    rest = lost[1].unflatten(-1, (groups, outputs)).permute(2, 0, 1, 3)
                    summed = wanted + rest
                    wanted = torch.where(summed > 0, wanted, torch.minimum(own, -rest))
                else:
                    wanted = torch.where(wanted > 0, wanted, own.clamp_max(0))
            first = self._fitted(samples, batch)
            for part, chosen in zip(parts, (slice(None, first), slice(first, None)), strict=True):
                if flat[:, chosen].shape[1]:
                    part.add(flat[:, chosen].flatten(1, 2), wanted[:, chosen].flatten(1, 2))
        return parts[0].reduced(), parts[1].reduced()

    def _fitted(self, samples: int, batch: int) -> int:
        """How many samples of a batch a fit may see; of single samples every fifth is held out."""
        least = round(1 / HELD_OUT)
        if samples >= least:
            return samples - round(samples * HELD_OUT)
        several = len(self.beside.batches) > 1
        return 0 if several and batch % least == least - 1 else samples

    def _places(self, samples: int, places: int) -> Tensor | None:
        """The places of an image to look at: all, or some drawn if there are very many."""
        total = samples * places * len(self.beside.batches)
        wanted = max(1, -(-ROWS // max(1, samples * len(self.beside.batches))))
        if total <= ROWS or wanted >= places:
            return None
        drawn = torch.randperm(places, generator=torch.Generator().manual_seed(places))
        return drawn[:wanted].sort().values

    def _write(self, site: Site, columns: Tensor, found: Fit, moments: Moments) -> None:
        model = self.models[PRUNED]
        weight = tensor_of(model, site.weight)
        whole = site.geometry.as_matrix(weight.detach().double()).clone()
        groups, _, taps, outputs = whole.shape
        old = whole[:, columns].reshape(groups, -1, outputs)
        if site.norm is None:
            new = found.weight
            if site.bias is not None:
                _set(tensor_of(model, site.bias), found.shift.flatten())
        else:
            sizes = old.norm(dim=1).clamp_min(1e-30), found.weight.norm(dim=1)
            size = torch.where(sizes[1] > 0, sizes[1] / sizes[0], torch.ones_like(sizes[0]))
            size = torch.where(sizes[0] > 1e-20, size, torch.ones_like(size))
            new = found.weight / size[:, None]
            mean, variance = moments.spread(new)
            set_norm(model, site.norm, mean.flatten(), variance.flatten(), size.flatten(), found.shift.flatten())
            if site.bias is not None:
                _set(tensor_of(model, site.bias), torch.zeros(groups * outputs))
        whole[:, columns] = new.reshape(groups, len(columns), taps, outputs)
        _set(weight, site.geometry.as_weight(whole, weight))

    def _fit_norm(self, norm: Norm, node: fx.Node) -> None:
        """A norm of its own: scale and shift by which what it reads comes closest to what it made."""
        if norm.scale is None:
            return
        model = self.models[PRUNED]
        scale, shift = affine(model, norm)
        groups = len(scale)
        parts = [Moments.none(groups, 1, 1) for _ in range(2)]
        operand = node.all_input_nodes[0].name
        for batch in self.beside.batches:
            read = self.beside.value(PRUNED, operand, batch)
            made = self.beside.value(UNPRUNED, node.name, batch)
            first = self._fitted(len(read), batch)
            for part, chosen in zip(parts, (slice(None, first), slice(first, None)), strict=True):
                if len(read[chosen]):
                    rows, wanted = (
                        own[chosen].transpose(0, 1).reshape(groups, -1, 1) for own in (read, made)
                    )
                    part.add(rows, wanted)
        fitted, held = (part.reduced() for part in parts)
        found = fit(fitted, held, scale.reshape(-1, 1, 1), shift.reshape(-1, 1), shifts=True)
        whole = fitted + held
        slope, moved = (found.weight, found.shift) if found.pays else (scale.reshape(-1, 1, 1), shift.reshape(-1, 1))
        mean, variance = whole.spread(torch.ones_like(slope))
        set_norm(model, norm, mean.flatten(), variance.flatten(), slope.flatten(), moved.flatten())


def affine(model: nn.Module, norm: Norm) -> tuple[Tensor, Tensor]:
    """What a norm multiplies each channel by, and what it adds."""
    parts = (norm.scale, norm.shift, norm.mean, norm.variance)
    scale, shift, mean, variance = (
        None if name is None else tensor_of(model, name).detach().double() for name in parts
    )
    assert mean is not None and variance is not None
    slope = (variance + norm.eps).rsqrt()
    slope = slope if scale is None else slope * scale
    return slope, (torch.zeros_like(mean) if shift is None else shift) - slope * mean


def set_norm(
    model: nn.Module, norm: Norm, mean: Tensor, variance: Tensor, slope: Tensor, shift: Tensor
) -> None:
    """Give a norm these statistics, and the scale and shift that multiply by `slope`, add `shift`."""
    assert norm.scale is not None and norm.shift is not None
    _set(tensor_of(model, norm.mean), mean)
    _set(tensor_of(model, norm.variance), variance)
    _set(tensor_of(model, norm.scale), slope * (variance + norm.eps).sqrt())
    _set(tensor_of(model, norm.shift), shift + slope * mean)


def _only(matrix: Tensor, columns: Tensor) -> Tensor:
    kept = torch.zeros_like(matrix)
    kept[:, columns] = matrix[:, columns]
    return kept


def _set(tensor: Tensor, numbers: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(numbers.reshape(tensor.shape))


__all__ = ["Refitted", "Refitting", "Sequence"]
