"""Random networks for property tests: drawn as data, read as code.

A `Network` is a list of ingredients, each a few lines of a module's `__init__` and `forward` that
name earlier tensors by number. Its text is a program that builds it, so a failure shrinks to
something that can be read, pasted and run.
"""

from tests.strategies.draft import INGREDIENTS
from tests.strategies.drawing import SIDES, networks
from tests.strategies.network import (
    ANOTHER_SIZE,
    SIZE,
    Network,
    build,
    outputs,
    told_apart,
)

__all__ = [
    "ANOTHER_SIZE",
    "INGREDIENTS",
    "SIDES",
    "SIZE",
    "Network",
    "build",
    "networks",
    "outputs",
    "told_apart",
]
