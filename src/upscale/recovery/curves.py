"""Curves: for every layer, the error of each number of columns it might keep, from one pass.

Errors are weighed by what they do to the model's outputs, so that curves of different layers can
be held against each other: the share of what the outputs vary by that they move.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.model.accepting import ordinary_tensors
from upscale.model.batches import evaluating
from upscale.model.layers import weight_names
from upscale.recovery.counting import Counting
from upscale.recovery.elimination import Curve, eliminate
from upscale.recovery.fitting import DAMPING, System, variation
from upscale.recovery.given import taken_batches
from upscale.recovery.moments import Moments
from upscale.recovery.sensitivity import sensitivities
from upscale.recovery.shelf import MEMORY, Shelf
from upscale.recovery.side_by_side import PRUNED, UNPRUNED, SideBySide
from upscale.recovery.sites import Site, find_sites, tensor_of
from upscale.recovery.writing import site_affine
from upscale.subject import Subject


@ordinary_tensors()
def curves(model: nn.Module, batches: Iterable[Any], *, memory: int = MEMORY) -> dict[str, Curve]:
    """For each layer that can be refitted, its columns in the order in which they go.

    The model itself is run once; nothing is pruned or changed.

    >>> net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).eval()
    >>> len(curves(net, [torch.randn(32, 3)])["1"].kept(2))
    2
    """
    taken = taken_batches(model, batches)
    with evaluating(model):
        subject = Subject.of(model, taken[0])
    return curves_of(subject, taken, memory)


def curves_of(
    subject: Subject, batches: Sequence[Example], memory: int = MEMORY
) -> dict[str, Curve]:
    """The curves of a subject's layers."""
    own = copy.deepcopy(subject.model).eval()
    sites, _ = find_sites(subject.captured, own)
    moved = sensitivities(subject.captured, own, batches, sites)
    last = {site.weight: name for name, site in sites.items()}
    sums: dict[str, Moments] = {}
    found: dict[str, Curve] = {}
    with torch.no_grad(), Shelf(memory) as shelf:
        beside = SideBySide(subject.captured, {UNPRUNED: own, PRUNED: own}, batches, shelf)
        counting = Counting(beside, own)
        for at, node in enumerate(beside.nodes[:-1]):
            beside.run(UNPRUNED, node)
            site = sites.get(node.name)
            if site is not None:
                seen, held = counting.of_layer([site], _all_columns(own, site))
                whole = seen + held
                sums[site.weight] = sums[site.weight] + whole if site.weight in sums else whole
                if last[site.weight] == node.name:
                    whole, factors = sums.pop(site.weight), moved.get(site.weight)
                    found[site.weight] = _curve(own, site, whole, factors)
            beside.forget(at)
    names = weight_names(own)
    return {layer: found[weight] for layer, weight in names.items() if weight in found}


def _all_columns(model: nn.Module, site: Site) -> Tensor:
    weight = tensor_of(model, site.weight)
    return torch.arange(site.geometry.as_matrix(weight).shape[1], device=weight.device)


def _curve(model: nn.Module, site: Site, whole: Moments, factors: Tensor | None) -> Curve:
    """The curve of a layer: with all its columns, its own weights explain all that it makes.

    `factors` say what an error of each channel does to the outputs; where that is not known,
    errors are shares of what the layer makes.
    """
    matrix = site.geometry.as_matrix(tensor_of(model, site.weight).detach().double())
    groups, columns, _, outputs = matrix.shape
    scale = site_affine(model, site)[0].reshape(groups, 1, outputs)
    unit = float(variation(whole))
    if factors is not None:
        scale = scale * factors.reshape(groups, 1, outputs).sqrt()
        unit = float(whole.count)
    system = System.of(whole, torch.zeros(groups, outputs).to(scale), shifts=site.shifts)
    inverse = torch.cholesky_inverse(system.factor(DAMPING))
    weight = matrix.reshape(groups, -1, outputs) * scale
    return eliminate(inverse, weight, columns, unit)
