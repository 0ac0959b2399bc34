"""Tensors of a model and of its export: what they are called, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer, by every name it has."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def aliases(named: Iterable[tuple[str, Tensor]]) -> dict[int, list[str]]:
    """All names of each tensor, by its identity."""
    names: dict[int, list[str]] = {}
    for name, tensor in named:
        names.setdefault(id(tensor), []).append(name)
    return names


def path_in(exported: nn.Module, path: str) -> str:
    """The path that something of a model has in its export.

    A graph module has a `graph` of its own: the model's is `graph_` there.
    """
    first, dot, rest = path.partition(".")
    parts = (exported._modules, exported._parameters, exported._buffers)
    clashes = hasattr(exported, first) and not any(first in part for part in parts)
    return f"{first}_{dot}{rest}" if clashes else path


def difference(ours: Tensor, theirs: Tensor, excused: Tensor | None = None) -> float:
    """The largest difference of two tensors in units of the largest number in the second.

    Shapes that differ, and numbers that are not finite in one place but not in the other, or
    there not the same, are infinitely far apart. Places in `excused` are not looked at.
    """
    ours, theirs = plain(ours), plain(theirs)
    if ours.shape != theirs.shape:
        return float("inf")
    if excused is not None:
        ours, theirs = ours[~excused], theirs[~excused]
    finite = ours.isfinite() & theirs.isfinite()
    if not finite.all():
        same = (ours == theirs) | (ours.isnan() & theirs.isnan())
        if not (same | finite).all():
            return float("inf")
        ours, theirs = ours[finite], theirs[finite]
    if ours.numel() == 0:
        return 0.0
    scale = theirs.abs().amax().item()
    apart = (ours - theirs).abs_().amax().item()
    return float(apart / scale if scale > 0 else apart)


def plain(tensor: Tensor) -> Tensor:
    """A tensor as real float64 numbers; a complex one has an axis more."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.to(torch.complex128))
    return tensor.double()


def is_inexact(tensor: Tensor) -> bool:
    """Whether a tensor's numbers are rounded; whole numbers and truths are not."""
    return tensor.is_floating_point() or tensor.is_complex()
