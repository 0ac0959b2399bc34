"""Ordinary tensors: those made outside of inference mode, which can be trained and saved."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Leave inference mode for a while: what is made under it can never be trained.

    It is left only where it is on, since leaving it turns gradients on.

    >>> with torch.inference_mode(), ordinary_tensors():
    ...     torch.zeros(1).is_inference()
    False
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(mode=False):
        yield


def ordinary_model(model: nn.Module) -> nn.Module:
    """The model; or, if it was made under inference mode, a copy that was not."""
    if is_ordinary(model):
        return model
    with ordinary_tensors():
        return copy.deepcopy(model)


def is_ordinary(model: nn.Module) -> bool:
    """Whether all that a model owns was made outside of inference mode."""
    return not any(own.is_inference() for own in (*model.parameters(), *model.buffers()))


def ordinary(tree: Any) -> Any:
    """What was given, with copies in place of tensors that were made under inference mode."""
    with ordinary_tensors():
        return tree_map_only(Tensor, lambda x: x.clone() if x.is_inference() else x, tree)
