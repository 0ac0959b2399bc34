"""Models whose channels can be told apart, and random selections for them."""

from __future__ import annotations

import random

from torch import nn

import upscale
from upscale.subject.layers import column_axis, columns, layers, weight_of


def calm(model: nn.Module) -> nn.Module:
    """Evaluation mode, with statistics and parameters that tell every channel apart."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
        if isinstance(module, norms) and module.weight is not None:
            nn.init.uniform_(module.weight, 0.5, 2)
            nn.init.normal_(module.bias)
    for layer in layers(model).values():
        if layer.bias is not None and not layer.bias.any():
            nn.init.normal_(layer.bias, std=0.1)
    return model.eval()


def random_selection(
    model: nn.Module,
    share: float,
    seed: int,
    *,
    empty: bool = True,
    side: str = "input",
    after: str = "norm",
) -> upscale.Selection:
    """Each column, or row, goes with the given probability; some layers keep all and, if
    `empty`, some nothing. Otherwise every layer keeps something.
    """
    rng = random.Random(seed)
    kept: dict[str, list[int]] = {}
    by_weight: dict[int, list[int]] = {}
    for name, layer in layers(model).items():
        mood = rng.random()
        goes = 1.0 if empty and mood < 0.08 else 0.0 if mood > 0.9 else share
        size = columns(layer)
        if side == "output":
            size = weight_of(layer).shape[1 - column_axis(layer)]
        chosen = [c for c in range(size) if rng.random() >= goes]
        if not chosen and not empty:
            chosen = [rng.randrange(size)]
        kept[name] = by_weight.setdefault(id(layer.weight), chosen)
    return upscale.Selection(kept=kept, side=side, after=after)
