"""Output pruning: layers drop channels they make, and the export computes what the mask shows."""

from __future__ import annotations

import pytest
import torch

import upscale
from tests.masks import calm, random_selection
from tests.nets import NETS
from upscale.capture import Example
from upscale.verify import compare


@pytest.mark.parametrize("after", ["norm", "layer"])
@pytest.mark.parametrize("name", NETS)
def test_an_export_equals_the_model_masked_on_its_output_side(name: str, after: str) -> None:
    make, example = NETS[name]
    for seed in range(4):
        torch.manual_seed(seed)
        model = calm(make()).double()
        share = (0.25, 0.75)[seed % 2]
        selection = random_selection(model, share, seed, side="output", after=after)
        given = Example.of(example(1, 12)).map(widened)
        plan = upscale.plan(model, given, selection)
        exported = upscale.export(model, plan)
        masked = upscale.mask(model, selection, example=given)
        for batch, size in ((1, 12), (3, 16)):
            error = compare(exported, masked, Example.of(example(batch, size))).relative_error
            assert error <= 1e-10, f"seed {seed}, batch {batch}, size {size}: {error}\n{plan}"


def widened(leaf: object) -> object:
    wide = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.double() if wide else leaf
