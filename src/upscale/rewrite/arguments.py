"""Arguments of nodes that a smaller model says otherwise: groups and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from upscale.capture.node_queries import size_arguments

# Where functional convolutions take their number of groups.
GROUPS_ARGUMENT = 6


def with_groups(
    args: tuple[Any, ...], kwargs: dict[str, Any], groups: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A functional convolution's arguments with another number of groups."""
    if len(args) > GROUPS_ARGUMENT:
        return (*args[:GROUPS_ARGUMENT], groups, *args[GROUPS_ARGUMENT + 1 :]), kwargs
    return args, {**kwargs, "groups": groups}


def with_sizes(node: fx.Node, args: tuple[Any, ...], sizes: Mapping[int, int]) -> tuple[Any, ...]:
    """A reshape's arguments with other sizes; what it infers it goes on inferring."""
    first = size_arguments(node) or 0
    listed = isinstance(args[first], (list, tuple))
    shape = list(args[first] if listed else args[first:])
    for axis, size in sizes.items():
        if not (isinstance(shape[axis], int) and shape[axis] == -1):
            shape[axis] = size
    return (*args[:first], shape) if listed else (*args[:first], *shape)
