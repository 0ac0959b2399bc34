"""The zero-copy reference costs what an export without copies would, and only that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS
from upscale.lab.zero_copy import wrong_numbers_plan, wrong_numbers_zero_copy
from upscale.planning import Edge

BRANCHING = (
    *("Residual", "InPlaceResidual", "Dense", "Inception", "SqueezeExcite", "Shuffle", "UNet"),
    *("SplitAndSlice", "FlipAndRoll", "PaddedShortcut", "Grouped", "InvertedResidual"),
    *("ChannelsLastBlock", "Flattened", "SeveralInputs", "FeaturesOut"),
)
ORDERS = ("none", "mrap", "optimal")


def planned(name: str, order: str, seed: int) -> tuple[nn.Module, upscale.Plan]:
    make, example = NETS[name]
    torch.manual_seed(seed)
    model = calm(make())
    selection = random_selection(model, (0.25, 0.75)[seed % 2], seed)
    return model, upscale.plan(model, example(1, 12), selection, order=order)


def shapes(module: nn.Module, example: Any) -> list[tuple[int, ...]]:
    given = example if isinstance(example, (tuple, list)) else (example,)
    with torch.no_grad():
        result = module(**example) if isinstance(example, dict) else module(*given)
    return [tuple(leaf.shape) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def all_edges(plan: upscale.Plan) -> tuple[Edge, ...]:
    return (*plan.graph.edges, *plan.graph.joins)


def gathers(module: fx.GraphModule) -> list[str]:
    return [name for name, _ in module.named_modules() if name.startswith("gathers.")]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", BRANCHING)
def test_layers_and_shapes_are_the_exports_and_nothing_is_copied(name: str, order: str) -> None:
    _, example = NETS[name]
    for seed in range(4):
        model, plan = planned(name, order, seed)
        exported, reference = upscale.export(model, plan), wrong_numbers_zero_copy(model, plan)
        assert wrong_numbers_plan(plan).copies == 0
        assert gathers(reference) == []
        assert {n: p.shape for n, p in reference.named_parameters()} == {
            n: p.shape for n, p in exported.named_parameters()
        }
        for batch, size in ((1, 12), (3, 16)):
            given = example(batch, size)
            assert shapes(reference, given) == shapes(exported, given)


@pytest.mark.parametrize("order", ORDERS)
def test_channels_taken_several_times_are_still_put_together(order: str) -> None:
    _, example = NETS["Repeated"]
    for seed in range(4):
        model, plan = planned("Repeated", order, seed)
        exported, reference = upscale.export(model, plan), wrong_numbers_zero_copy(model, plan)
        assert gathers(reference) == []
        assert shapes(reference, example(2, 12)) == shapes(exported, example(2, 12))


def test_some_plan_of_these_nets_copies_in_every_way_there_is() -> None:
    kinds = {
        edge.kind
        for name in BRANCHING
        for order in ORDERS
        for edge in all_edges(planned(name, order, 1)[1])
    }
    assert kinds == {"slice", "runs", "gather", "concat"}


def test_a_concatenation_keeps_its_length_and_takes_one_slice_of_each_value() -> None:
    for order in ORDERS:
        _, plan = planned("Dense", order, 0)
        changed = wrong_numbers_plan(plan)
        for before, after in zip(all_edges(plan), all_edges(changed), strict=True):
            assert before.concatenated_bytes == after.concatenated_bytes
            roots = [piece.value for piece in after.pieces]
            assert len(roots) == len(set(roots))


def test_a_plan_that_copies_nothing_stays_as_it_is() -> None:
    model, example = NETS["Plain"]
    plan = upscale.plan(model(), example(1, 12), upscale.Selection(kept={"b": [1, 4, 7]}))
    assert plan.copies == 0
    assert replace(wrong_numbers_plan(plan), order=plan.order) == plan


def test_its_name_tells_whoever_prints_it() -> None:
    model, plan = planned("Residual", "none", 1)
    assert "WrongNumbers" in type(wrong_numbers_zero_copy(model, plan)).__name__
    assert "WRONG NUMBERS" in str(wrong_numbers_plan(plan))


def test_its_numbers_are_wrong() -> None:
    model, plan = planned("Residual", "none", 1)
    assert plan.copies > 0
    x = torch.randn(1, 3, 12, 12)
    with torch.no_grad():
        exported, reference = upscale.export(model, plan), wrong_numbers_zero_copy(model, plan)
        assert not torch.allclose(exported(x), reference(x))
