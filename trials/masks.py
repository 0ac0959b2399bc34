"""Random selections: the one maker of masks for tests, scripts and benchmarks."""

from __future__ import annotations

import random
from collections.abc import Collection

from torch import nn

import upscale
from upscale.model.layers import column_axis, layers, weight_names, weight_of

# How many layers keep nothing, and how many everything.
NOTHING, EVERYTHING = 0.08, 0.1
NOTHING_IF_EVEN = 0.1


def random_selection(
    model: nn.Module,
    share: float,
    seed: int | random.Random,
    *,
    side: str = "input",
    after: str = "norm",
    even: bool = False,
    empty: bool | None = None,
    among: Collection[str] | None = None,
) -> upscale.Selection:
    """Every layer, or each `among` those named, drops channels at random, whatever others drop.

    With `even` a layer drops exactly the given share, rounded. Otherwise each of its channels
    goes with that probability, and some layers keep everything. With `empty`, which only uneven
    masks are by default, some layers keep nothing; else every layer keeps something. Layers that
    share a weight keep the same.
    """
    rng = seed if isinstance(seed, random.Random) else random.Random(seed)
    empty = not even if empty is None else empty
    draw = _even if even else _uneven
    names = weight_names(model)
    by_weight: dict[str, list[int]] = {}
    masked = {
        name: layer for name, layer in layers(model).items() if among is None or name in among
    }
    for name, layer in masked.items():
        axis = column_axis(layer) if side == "input" else 1 - column_axis(layer)
        by_weight.setdefault(names[name], draw(weight_of(layer).shape[axis], share, empty, rng))
    if even and empty and all(by_weight.values()):
        by_weight[rng.choice(sorted(by_weight))] = []
    kept = {name: by_weight[names[name]] for name in masked}
    return upscale.Selection(kept=kept, side=side, after=after)


def _even(count: int, share: float, empty: bool, rng: random.Random) -> list[int]:
    staying = max(1, count - round(share * count))
    if empty and rng.random() < NOTHING_IF_EVEN:
        staying = 0
    return rng.sample(range(count), staying)


def _uneven(count: int, share: float, empty: bool, rng: random.Random) -> list[int]:
    mood = rng.random()
    goes = 1.0 if empty and mood < NOTHING else 0.0 if mood > 1 - EVERYTHING else share
    kept = [channel for channel in range(count) if rng.random() >= goes]
    return kept if kept or empty else [rng.randrange(count)]
