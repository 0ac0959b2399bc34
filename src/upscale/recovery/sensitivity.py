"""Sensitivity: how far an error in what a layer makes moves what the model makes.

Say a layer makes z and the model f(z). A small error δ moves the output by J·δ. Averaged over
random signs v, the gradient g of v·f says how far, without ever forming J:

    E‖J·δ‖²  =  E(vᵀJ·δ)²  ≈  Σ g²·δ²        if errors at different places have nothing in common

So one backward pass gives for each channel of each layer a factor: its g², summed over places and
averaged over samples. Errors times these factors can be compared between layers.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from upscale.capture import Captured, Example, OwnDraws, tensors_in
from upscale.recovery import processes
from upscale.recovery.fitting import TINY
from upscale.recovery.shelf import Shelf
from upscale.recovery.side_by_side import UNPRUNED, SideBySide
from upscale.recovery.sites import Site

# So many samples are enough for a factor; batches behind them are not looked at.
SAMPLES = 128


def sensitivities(
    captured: Captured, model: nn.Module, batches: Iterable[Example], sites: Mapping[str, Site]
) -> dict[str, Tensor]:
    """For each weight, what an error in each channel that it makes does to the outputs.

    As a share of what the outputs vary by: times an error's mean square it is the mean square
    that the outputs move by. None of a layer that no output follows from smoothly.
    """
    totals: dict[str, Tensor] = {}
    made: list[list[Tensor]] = []
    for outputs, slopes in _looked_at(captured, model, _first(batches), sites):
        for site, slope in slopes:
            squares = site.geometry.by_channel(slope.double()).square().sum(dim=(0, 1))
            totals[site.weight] = totals.get(site.weight, torch.zeros_like(squares)) + squares
        made.append([output.double() for output in outputs])
    varied = sum(_variation(outputs) for outputs in zip(*made, strict=True))
    return {n: processes.summed(total) / max(varied, TINY) for n, total in sorted(totals.items())}


def _first(batches: Iterable[Example]) -> Iterator[Example]:
    """As many batches as hold enough samples."""
    seen = 0
    for batch in batches:
        if seen >= SAMPLES / processes.count():
            return
        yield batch
        first = batch.tensors[0]
        seen += len(first) if first.ndim else 1


def _looked_at(
    captured: Captured, model: nn.Module, batches: Iterable[Example], sites: Mapping[str, Site]
) -> Iterator[tuple[list[Tensor], list[tuple[Site, Tensor]]]]:
    """What the model makes of each batch, and g at each site that its outputs follow from.

    Nothing if there is none: no output is a number that moves smoothly with what sites make.
    """
    own = copy.deepcopy(model)
    for parameter in own.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    for batch in batches:
        draws = torch.Generator().manual_seed(0)  # whichever process a batch is run in
        slopes: list[tuple[Site, Tensor]] = []
        with torch.enable_grad(), OwnDraws():
            outputs = _run(captured, own, batch, sites, slopes)
            smooth = [output for output in outputs if output.requires_grad]
            if not smooth:
                return
            signs = [torch.randint(0, 2, x.shape, generator=draws).to(x) * 2 - 1 for x in smooth]
            torch.autograd.backward(smooth, signs)
        own.zero_grad(set_to_none=True)
        yield [output.detach() for output in smooth], slopes


def _run(
    captured: Captured,
    model: nn.Module,
    batch: Example,
    sites: Mapping[str, Site],
    slopes: list[tuple[Site, Tensor]],
) -> list[Tensor]:
    """What a model makes; gradients of what its sites make are put down when they are known."""
    watched = {site.norm.node if site.norm else node: site for node, site in sites.items()}
    with Shelf(sys.maxsize) as shelf:
        beside = SideBySide(captured, {UNPRUNED: model}, [batch], shelf)

        def value(node: fx.Node) -> Any:
            return beside.value(UNPRUNED, node.name, 0)

        for node in beside.nodes[:-1]:
            beside.run(UNPRUNED, node)
            if node.name in watched and value(node).requires_grad:
                # A hook sees the gradient of what is there now, also if it is written to later.
                value(node).register_hook(
                    lambda slope, site=watched[node.name]: slopes.append((site, slope))
                )
        return tensors_in(fx.node.map_arg(beside.nodes[-1].args, value))


def _variation(outputs: Sequence[Tensor]) -> float:
    """How much one output varies about its mean over all samples; all of it where it cannot."""
    squares = processes.summed(torch.stack([output.square().sum() for output in outputs]).sum())
    shapes = {output.shape[1:] for output in outputs}
    apart = torch.tensor(float(len(shapes) > 1 or outputs[0].ndim == 0))
    if processes.summed(apart) > 0:
        return float(squares)
    whole = torch.cat(list(outputs))
    count = processes.summed(torch.tensor(float(len(whole))))
    mean = processes.summed(whole.sum(dim=0)) / count
    return float(processes.summed((whole - mean).square().sum()))
