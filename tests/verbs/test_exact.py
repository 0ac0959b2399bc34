"""The promise: an export computes what the masked model computes, whatever is selected."""

from __future__ import annotations

import pytest
import torch

import upscale
from trials.comparing import relative_error
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS, TRACED

# Masks for each order: ours is met the most often.
SEEDS = {"none": (0, 1), "optimal": (2, 3, 4, 5), "mrap": (6, 7)}


@pytest.mark.parametrize("order", SEEDS)
@pytest.mark.parametrize("name", TRACED)
def test_an_export_equals_the_masked_model(name: str, order: str) -> None:
    make, example = NETS[name]
    for seed in SEEDS[order]:
        torch.manual_seed(seed)
        model = calm(make())
        selection = random_selection(model, (0.25, 0.75)[seed % 2], seed)
        plan = upscale.plan(model, example(1, 12), selection, order=order)
        exported = upscale.export(model, plan)
        masked = upscale.mask(model, selection)
        for batch, size in ((1, 12), (3, 16)):
            error = relative_error(exported, masked, example(batch, size))
            assert error <= 1e-10, f"seed {seed}, batch {batch}, size {size}: {error}\n{plan}"
