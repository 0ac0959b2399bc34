"""The promise: an export computes what the masked model computes, whatever is selected."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import upscale
from tests.nets import NETS
from upscale.capture import Example
from upscale.layers import columns, layers
from upscale.verify import compare


def calm(model: nn.Module) -> nn.Module:
    """Normalisation layers with statistics and parameters that tell channels apart."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
        if isinstance(module, (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)):
            if module.weight is not None:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
    return model.eval()


def random_selection(model: nn.Module, share: float, seed: int) -> upscale.Selection:
    """Each column goes with the given probability; some layers keep nothing, some all."""
    rng = random.Random(seed)
    kept: dict[str, list[int]] = {}
    by_weight: dict[int, list[int]] = {}
    for name, layer in layers(model).items():
        mood = rng.random()
        goes = 1.0 if mood < 0.08 else 0.0 if mood > 0.9 else share
        chosen = [c for c in range(columns(layer)) if rng.random() >= goes]
        kept[name] = by_weight.setdefault(id(layer.weight), chosen)
    return upscale.Selection(kept=kept)


@pytest.mark.parametrize("order", ["none", "optimal", "mrap"])
@pytest.mark.parametrize("name", NETS)
def test_an_export_equals_the_masked_model(name: str, order: str) -> None:
    make, example = NETS[name]
    for seed in range(6):
        torch.manual_seed(seed)
        model = calm(make())
        selection = random_selection(model, (0.25, 0.75)[seed % 2], seed)
        plan = upscale.plan(model, example(1, 12), selection, order=order)
        exported = upscale.export(model, plan)
        masked = upscale.mask(model, selection)
        for batch, size in ((1, 12), (3, 16)):
            error = compare(exported, masked, Example.of(example(batch, size))).relative_error
            assert error <= 1e-10, f"seed {seed}, batch {batch}, size {size}: {error}\n{plan}"
