"""Curves: for every layer, the error of each number of columns it might keep, from one pass."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from upscale.model.accepting import ordinary_tensors
from upscale.model.layers import weight_names
from upscale.recovery.counting import Counting
from upscale.recovery.elimination import Curve, eliminate
from upscale.recovery.fitting import DAMPING, System, variation
from upscale.recovery.moments import Moments
from upscale.recovery.recover import taken_batches
from upscale.recovery.shelf import Shelf
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, SideBySide
from upscale.recovery.sites import Site, find_sites, tensor_of
from upscale.recovery.writing import site_affine
from upscale.selection.batches import evaluating
from upscale.subject import Subject


@ordinary_tensors()
def curves(model: nn.Module, batches: Iterable[Any], *, memory: int = 2 << 30) -> dict[str, Curve]:
    """For each layer that can be refitted, its columns in the order in which they go.

    The model itself is run once; nothing is pruned or changed.

    >>> net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).eval()
    >>> len(curves(net, [torch.randn(32, 3)])["1"].kept(2))
    2
    """
    taken = taken_batches(model, batches)
    with evaluating(model):
        subject = Subject.of(model, taken[0])
    own = copy.deepcopy(subject.model).eval()
    sites, _ = find_sites(subject.captured, own)
    last = {site.weight: name for name, site in sites.items()}
    sums: dict[str, Moments] = {}
    found: dict[str, Curve] = {}
    with torch.no_grad(), Shelf(memory) as shelf:
        beside = SideBySide(subject.captured, {UNPRUNED: own, PRUNED: own}, taken, shelf)
        counting = Counting(beside, own)
        for at, node in enumerate(beside.nodes[:-1]):
            beside.run(UNPRUNED, node)
            site = sites.get(node.name)
            if site is not None:
                seen, held = counting.of_layer([site], _all_columns(own, site))
                whole = seen + held
                sums[site.weight] = sums[site.weight] + whole if site.weight in sums else whole
                if last[site.weight] == node.name:
                    found[site.weight] = _curve(own, site, sums.pop(site.weight))
            beside.forget(at)
    names = weight_names(own)
    return {layer: found[weight] for layer, weight in names.items() if weight in found}


def _all_columns(model: nn.Module, site: Site) -> Tensor:
    weight = tensor_of(model, site.weight)
    return torch.arange(site.geometry.as_matrix(weight).shape[1], device=weight.device)


def _curve(model: nn.Module, site: Site, whole: Moments) -> Curve:
    """The curve of a layer: with all its columns, its own weights explain all that it makes."""
    matrix = site.geometry.as_matrix(tensor_of(model, site.weight).detach().double())
    groups, columns, _, outputs = matrix.shape
    scale = site_affine(model, site)[0].reshape(groups, 1, outputs)
    system = System.of(whole, torch.zeros(groups, outputs), shifts=site.shifts)
    inverse = torch.cholesky_inverse(system.factor(DAMPING))
    weight = matrix.reshape(groups, -1, outputs) * scale
    return eliminate(inverse, weight, columns, float(variation(whole)))
