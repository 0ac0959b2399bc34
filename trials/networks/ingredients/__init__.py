"""Everything a network can be drawn from, in the order that seeds count on."""

# isort: off
from trials.networks.ingredients import (
    layers,
    reuse,
    elementwise,
    branches,
    movement,
    mixing,
    space,
    kinds,
    attention,
)

# isort: on

__all__ = [
    "attention",
    "branches",
    "elementwise",
    "kinds",
    "layers",
    "mixing",
    "movement",
    "reuse",
    "space",
]
