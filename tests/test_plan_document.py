"""A plan is a document: it goes out as JSON and comes back, shows what moved, and is undone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import upscale
from tests.masks import calm, random_selection
from tests.nets import NETS, TRACED
from upscale.capture import Example
from upscale.verify import TOLERANCE, compare


def planned(name: str, side: str = "input") -> tuple[nn.Module, Any, upscale.Plan]:
    torch.manual_seed(0)
    make, example = NETS[name]
    model, inputs = calm(make()), example(2, 16)
    selection = random_selection(model, 0.4, seed=0, side=side)
    return model, inputs, upscale.plan(model, inputs, selection)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("name", TRACED)
def test_a_plan_from_json_exports_the_same_model(name: str, side: str) -> None:
    model, inputs, plan = planned(name, side)
    read = upscale.Plan.from_json(plan.to_json())
    assert read == plan
    assert str(read) == str(plan)
    again, pruned = upscale.export(model, read, inputs), upscale.export(model, plan)
    assert again.code == pruned.code
    states = again.state_dict(), pruned.state_dict()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("name", TRACED)
def test_undone_an_export_is_the_masked_model(name: str, side: str) -> None:
    model, inputs, plan = planned(name, side)
    pruned = upscale.export(model, plan)
    with torch.no_grad():
        for parameter in pruned.parameters():
            parameter *= 1.25  # trained since
    torch.manual_seed(7)
    other = calm(NETS[name][0]())
    before = {key: tensor.clone() for key, tensor in other.state_dict().items()}
    if plan.rounds:
        pruned = upscale.export(model, plan)  # what is folded follows from the weights it was from
    undone = upscale.undo(pruned, other)
    assert compare(pruned, undone, Example.of(inputs)).relative_error <= TOLERANCE
    assert [p.shape for p in undone.parameters()] == [p.shape for p in model.parameters()]
    assert all(torch.equal(before[key], tensor) for key, tensor in other.state_dict().items())


def test_a_plan_from_json_needs_an_example_and_its_own_model() -> None:
    model, inputs, plan = planned("Residual")
    read = upscale.Plan.from_json(plan.to_json())
    with pytest.raises(upscale.PlanError, match="pass an example"):
        upscale.export(model, read)
    other, _, _ = planned("Plain")
    with pytest.raises(upscale.PlanError, match="made for another model"):
        upscale.export(other, read, inputs)
    with pytest.raises(upscale.PlanError, match="made for another model"):
        upscale.export(model.train(), read, inputs)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"kept": 3},
        {"kept": {"a": ["0"]}},
        {"cuts": {"a": {"x": [0]}}},
        {"order_cost": "much"},
        {"constants": [1]},
        {"more": 1},
        {"edges": [{"node": "a"}]},
    ],
)
def test_json_that_is_no_plan_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(planned("Residual")[2].to_json())
    with pytest.raises(upscale.PlanError):
        upscale.Plan.from_json(json.dumps(document | change))


def test_an_edge_that_reads_nothing_is_refused() -> None:
    document = json.loads(planned("Residual")[2].to_json())
    document["edges"][0]["pieces"] = []
    with pytest.raises(upscale.PlanError, match="reads nothing"):
        upscale.Plan.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(upscale.PlanError):
        upscale.Plan.from_json(text)


def test_channel_maps_say_where_every_weight_went() -> None:
    model, _, plan = planned("Residual")
    pruned = upscale.export(model, plan)
    maps = upscale.channel_maps(model, plan)
    moved = 0
    for name, mapped in maps.items():
        wide = model.get_parameter(f"{name}.weight")
        small = pruned.get_parameter(f"{name}.weight")
        kept = set(plan.kept[f"{name}.weight"])
        assert small.shape[:2] == (len(mapped.outputs), len(mapped.inputs))
        for old, new in mapped.outputs.items():
            for column, place in mapped.inputs.items():
                expected = wide[old, column] * (column in kept)
                assert torch.equal(small[new, place], expected)
                moved += (old, column) != (new, place)
    assert moved > 0


def test_only_exports_can_be_undone() -> None:
    with pytest.raises(upscale.PlanError, match="can be undone"):
        upscale.undo(torch.fx.symbolic_trace(nn.Linear(2, 2)), nn.Linear(2, 2))
    model, _, plan = planned("Residual")
    with pytest.raises(upscale.PlanError, match="another model"):
        upscale.undo(upscale.export(model, plan), nn.Sequential(nn.Linear(2, 2)))
