"""Packing: tensors in containers, torch's own, mappings and dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in what a model takes or gives, also in dataclasses and mappings.

    >>> import torch
    >>> len(tensors_in({"a": [torch.zeros(1)], "b": (torch.zeros(1), 3)}))
    2
    """
    found: list[Tensor] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif is_record(leaf):
            for field in dataclasses.fields(leaf):
                found += tensors_in(getattr(leaf, field.name, None))
        elif isinstance(leaf, Mapping):
            found += tensors_in(list(leaf.values()))
    return found


def is_record(value: Any) -> bool:
    """Whether a value is a dataclass, and no class of one."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
