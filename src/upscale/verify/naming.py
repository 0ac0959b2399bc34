"""What a model's parameters and buffers are called, here and in an export of it."""

from __future__ import annotations

from torch import Tensor, nn


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer, by every name it has."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def path_in(exported: nn.Module, path: str) -> str:
    """The path that something of a model has in its export.

    A graph module has a `graph` of its own: the model's is `graph_` there.
    """
    first, dot, rest = path.partition(".")
    parts = (exported._modules, exported._parameters, exported._buffers)
    clashes = hasattr(exported, first) and not any(first in part for part in parts)
    return f"{first}_{dot}{rest}" if clashes else path
