"""Writing a fit back into a model: no parameter is added, none gets another name.

A layer with its norm was fitted as one, z = W̃ x + b̃. The layer gets W̃, each row scaled to the
length that its weights had, and the norm the scale and shift with which the two together compute
z. Once the layer has run, the norm gets the statistics of what it makes now, so that training and
evaluation agree; scale and shift make up for that.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from upscale.recovery.fitting import Fit
from upscale.recovery.sites import Norm, Site, tensor_of


def affine(model: nn.Module, norm: Norm) -> tuple[Tensor, Tensor]:
    """What a norm multiplies each channel by, and what it adds."""
    mean, variance = (_wide(model, name) for name in (norm.mean, norm.variance))
    slope = (variance + norm.eps).rsqrt() * _wide(model, norm.scale)
    return slope, _wide(model, norm.shift) - slope * mean


def site_affine(model: nn.Module, site: Site) -> tuple[Tensor, Tensor]:
    """What follows a layer's product, by channel: a factor and a number that is added."""
    weight = tensor_of(model, site.weight)
    rows = weight.shape[1] * site.geometry.groups if site.geometry.transposed else weight.shape[0]
    scale = torch.ones(rows, dtype=torch.float64, device=weight.device)
    shift = torch.zeros_like(scale) if site.bias is None else _wide(model, site.bias)
    if site.norm is None:
        return scale, shift
    slope, moved = affine(model, site.norm)
    return slope, slope * shift + moved


def write_site(model: nn.Module, site: Site, columns: Tensor, found: Fit) -> None:
    """Give a layer, and the norm behind it, fitted weights; other columns are zero."""
    weight = tensor_of(model, site.weight)
    whole = site.geometry.as_matrix(weight.detach().double()).clone()
    groups, _, taps, outputs = whole.shape
    new = found.weight
    if site.norm is not None:
        old = whole[:, columns].reshape(groups, -1, outputs)
        before, after = old.norm(dim=1), new.norm(dim=1)
        # A row that is zero, or was, has no length to keep.
        length = torch.where((before > 0) & (after > 0), after / before, 1.0)
        new = new / length[:, None]
        mean, variance = _wide(model, site.norm.mean), _wide(model, site.norm.variance)
        write_norm(model, site.norm, mean, variance, length.flatten(), found.shift.flatten())
    if site.bias is not None:
        bias = tensor_of(model, site.bias)
        _write(bias, torch.zeros_like(bias) if site.norm is not None else found.shift)
    whole[:, columns] = new.reshape(groups, len(columns), taps, outputs)
    write_columns(model, site, columns, whole)


def write_columns(
    model: nn.Module, site: Site, columns: Tensor, whole: Tensor | None = None
) -> None:
    """Leave a layer these columns of its weight, or of a matrix; the others are zero."""
    weight = tensor_of(model, site.weight)
    if whole is None:
        whole = site.geometry.as_matrix(weight.detach().double())
    left = torch.zeros_like(whole)
    left[:, columns] = whole[:, columns]
    _write(weight, site.geometry.as_weight(left, weight))


def write_norm(
    model: nn.Module, norm: Norm, mean: Tensor, variance: Tensor, slope: Tensor, shift: Tensor
) -> None:
    """Give a norm these statistics, and let it multiply by `slope` and add `shift`."""
    _write(tensor_of(model, norm.mean), mean)
    _write(tensor_of(model, norm.variance), variance)
    _write(tensor_of(model, norm.scale), slope * (variance + norm.eps).sqrt())
    _write(tensor_of(model, norm.shift), shift + slope * mean)


def _wide(model: nn.Module, name: str) -> Tensor:
    return tensor_of(model, name).detach().double()


def _write(tensor: Tensor, numbers: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(numbers.reshape(tensor.shape))
