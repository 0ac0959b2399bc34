"""Random networks for property tests: drawn as data, read as code.

A `Network` is a list of ingredients, each a few lines of a module's `__init__` and `forward` that
name earlier tensors by number. Its text is a program that builds it, so a failure shrinks to
something that can be read, pasted and run.
"""

from trials.networks.draft import INGREDIENTS
from trials.networks.drawing import SIDES, networks
from trials.networks.network import (
    ANOTHER_SIZE,
    SIZE,
    Network,
    build,
    outputs,
    told_apart,
)
from trials.networks.property import (
    EXPECTED_REFUSAL,
    assert_exports_exactly,
    assert_recovers_exactly,
)

__all__ = [
    "ANOTHER_SIZE",
    "EXPECTED_REFUSAL",
    "INGREDIENTS",
    "SIDES",
    "SIZE",
    "Network",
    "assert_exports_exactly",
    "assert_recovers_exactly",
    "build",
    "networks",
    "outputs",
    "told_apart",
]
