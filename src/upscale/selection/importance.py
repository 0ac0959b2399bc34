"""Importance: how much each input channel of a layer matters, from its weight."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from upscale.errors import SelectionError

Importance = Callable[[Tensor], Tensor]


def l1(weight: Tensor) -> Tensor:
    """The sum of absolute weights of each column.

    >>> import torch
    >>> l1(torch.tensor([[1.0, -2.0], [3.0, 0.0]])).tolist()
    [4.0, 2.0]
    """
    return weight.transpose(0, 1).flatten(1).abs().sum(dim=1)


def l2(weight: Tensor) -> Tensor:
    """The Euclidean norm of each column.

    >>> import torch
    >>> l2(torch.tensor([[3.0, 0.0], [4.0, 1.0]])).tolist()
    [5.0, 1.0]
    """
    return weight.transpose(0, 1).flatten(1).square().sum(dim=1).sqrt()


IMPORTANCES: dict[str, Importance] = {"l1": l1, "l2": l2}


def importance_named(name: str) -> Importance:
    """The criterion of a name."""
    if not isinstance(name, str) or name not in IMPORTANCES:
        known = ", ".join(repr(known) for known in sorted(IMPORTANCES))
        raise SelectionError(f"importance is {name!r}; it must be one of {known}")
    return IMPORTANCES[name]
