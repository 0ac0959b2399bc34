"""Refitting: one pass in which every layer is fitted when it is met.

Each is fitted to what the unpruned network makes there, on what the pruned network reads there by
then, so that what follows sees it as it will be. At a sum the branch that runs last also makes up
for what the other has lost: its target is z* + (r* − r), where r is what it is added to.

A layer that is called several times has one fit over all its calls. The pass runs on to the last
of them with the old weights, fits, and goes back to the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, fx, nn

from upscale.errors import RecoveryError
from upscale.recovery.counting import Counting, Parts
from upscale.recovery.elimination import eliminate
from upscale.recovery.fitting import DAMPING, Fit, System, fit, refine
from upscale.recovery.moments import Moments
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, SideBySide
from upscale.recovery.sites import Norm, Site, tensor_of
from upscale.recovery.writing import affine, site_affine, write_columns, write_norm, write_site


@dataclass(frozen=True, slots=True)
class Refit:
    """What became of one layer, or of a norm of its own.

    Errors are held-out shares of the variation of what it should make; `kept` says that the fit
    did no better, so that the old weights stay.
    """

    weight: str
    before: float
    after: float
    rows: int
    columns: int
    kept: bool


@dataclass(slots=True)
class Refitting:
    """Two networks, what can be fitted in them, and the columns that weights keep.

    With `choosing`, `kept` says only how many: which they are is decided where a layer is met.
    """

    beside: SideBySide
    models: Mapping[str, nn.Module]
    sites: Mapping[str, Site]
    norms: Mapping[str, Norm]
    kept: dict[str, tuple[int, ...]]
    choosing: bool
    tell: Callable[[int, int], None]
    refits: list[Refit] = field(default_factory=list)

    @property
    def _counting(self) -> Counting:
        return Counting(self.beside, self.models[UNPRUNED])

    def run(self) -> None:
        """Run both networks to the end, and fit on the way."""
        calls = Counter(site.weight for site in self.sites.values())
        ranks = {node.name: at for at, node in enumerate(self.beside.nodes)}
        last = {site.weight: ranks[name] for name, site in self.sites.items()}
        behind = {site.norm.node for site in self.sites.values() if site.norm is not None}
        fitted: set[str] = set()
        for at, node in enumerate(self.beside.nodes[:-1]):
            site = self.sites.get(node.name)
            if self._run_unpruned(node):
                if site is not None and site.weight not in fitted:
                    fitted.add(site.weight)
                    if calls[site.weight] > 1:
                        self._fit_jointly(site.weight, at, last[site.weight])
                    else:
                        self._fit([site])
                elif node.name in self.norms and node.name not in behind:
                    self._fit_norm(self.norms[node.name], node)
                self.beside.run(PRUNED, node)
                if site is not None and site.norm is not None:
                    self._renew(site, site.norm)
            self.beside.forget(at)
            self.tell(at + 1, len(self.beside.nodes) - 1)

    def _run_unpruned(self, node: fx.Node) -> bool:
        """Run a node of the unpruned network; whether the pruned one makes another thing there."""
        self.beside.run(UNPRUNED, node)
        site = self.sites.get(node.name)
        pruned = site is not None and site.weight in self.kept
        if not (self.beside.differs(node) or pruned):
            return False
        self.beside.apart.add(node.name)
        return True

    def _fit_jointly(self, weight: str, first: int, last: int) -> None:
        """Fit a layer to all its calls: run to the last of them, fit, and forget the run."""
        copies = self.beside.copies(first, last)
        sites = []
        for node in self.beside.nodes[first : last + 1]:
            if self._run_unpruned(node):
                self.beside.run(PRUNED, node)
            if node.name in self.sites and self.sites[node.name].weight == weight:
                sites.append(self.sites[node.name])
        self._fit(sites)
        self.beside.restore(copies)

    def _fit(self, sites: list[Site]) -> None:
        """Fit one layer, on all its calls."""
        model, site = self.models[PRUNED], sites[0]
        weight = tensor_of(model, site.weight)
        matrix = site.geometry.as_matrix(weight.detach().double())
        groups, count, taps, outputs = matrix.shape
        scale, shift = (own.reshape(groups, outputs) for own in site_affine(model, site))
        old = (matrix * scale[:, None, None]).flatten(1, 2)
        kept = self.kept.get(site.weight, range(count))
        columns = torch.tensor(kept, dtype=torch.long, device=weight.device)
        if self.choosing and len(kept) < count:
            # What is zero already was pruned before, and stays so.
            columns = matrix.any(dim=3).any(dim=2).any(dim=0).nonzero().flatten()
        parts = self._counting.of_layer(sites, columns)
        old = old[:, entries_of(columns, taps)]
        if len(kept) < len(columns):
            left = chosen(parts[0] + parts[1], old, shift, site, len(kept))
            columns, entries = columns[left], entries_of(left, taps)
            self.kept[site.weight] = tuple(columns.tolist())
            old, parts = (
                old[:, entries],
                (parts[0].of_columns(entries), parts[1].of_columns(entries)),
            )
        found = self._fitted(sites, columns, parts, old, shift)
        if found.pays:
            write_site(model, site, columns, found)
        else:
            write_columns(model, site, columns)

    def _fitted(
        self, sites: list[Site], columns: Tensor, parts: Parts, old: Tensor, shift: Tensor
    ) -> Fit:
        """The fit of a layer; where something is cut off behind it, what is cut may be anything."""
        site = sites[0]
        found = self._checked(site.weight, parts, old, shift, shifts=site.shifts)
        if site.cut is not None:
            nearer = partial(self._counting.allowed, site, site.cut, columns, parts)
            found = refine(found, parts[0], old, shift, nearer, shifts=site.shifts)
        self._note(site.weight, found)
        return found

    def _checked(
        self, weight: str, parts: Parts, old: Tensor, shift: Tensor, *, shifts: bool
    ) -> Fit:
        fitted, held = parts
        if not torch.isfinite(fitted.energy + held.energy).all():
            raise RecoveryError(
                f"{weight}: what the model computes there on the batches is not finite"
            )
        return fit(fitted, held, old, shift, shifts=shifts)

    def _note(self, weight: str, found: Fit) -> None:
        rows, columns = int(found.whole.count), found.weight.shape[1]
        self.refits.append(Refit(weight, found.before, found.after, rows, columns, not found.pays))

    def _renew(self, site: Site, norm: Norm) -> None:
        """Give the norm behind a layer the statistics of what the layer makes now."""
        model = self.models[PRUNED]
        write_norm(model, norm, *self._counting.spread(site), *affine(model, norm))

    def _fit_norm(self, norm: Norm, node: fx.Node) -> None:
        """Fit a norm of its own: the scale and shift that bring it closest to what it made."""
        model = self.models[PRUNED]
        scale, shift = (own[:, None] for own in affine(model, norm))
        parts = self._counting.of_norm(norm, node.all_input_nodes[0].name)
        found = self._checked(norm.scale, parts, scale[:, None], shift, shifts=True)
        self._note(norm.scale, found)
        slope, moved = (found.weight[:, 0], found.shift) if found.pays else (scale, shift)
        mean, variance = found.whole.spread(torch.ones_like(slope)[:, None])
        write_norm(model, norm, *(own.flatten() for own in (mean, variance, slope, moved)))


def chosen(moments: Moments, old: Tensor, shift: Tensor, site: Site, count: int) -> Tensor:
    """The columns to keep, if so many are: those that the others could stand in for the least."""
    system = System.of(moments, shift, shifts=site.shifts)
    inverse = torch.cholesky_inverse(system.factor(DAMPING))
    best = system.solved(old, DAMPING)
    columns = best.shape[1] // site.geometry.taps
    gone = eliminate(inverse, best, columns, variation=1.0, least=count).order
    left = sorted(set(range(columns)).difference(gone))
    return torch.tensor(left, device=old.device, dtype=torch.long)


def entries_of(columns: Tensor, taps: int) -> Tensor:
    """Where the taps of some columns stand, of a weight as one row of columns and taps."""
    return (columns[:, None] * taps + torch.arange(taps, device=columns.device)).flatten()


def few_rows(refits: Iterable[Refit]) -> list[str]:
    """The weights that were fitted to fewer rows than they have columns."""
    return [refit.weight for refit in refits if refit.rows < refit.columns]
