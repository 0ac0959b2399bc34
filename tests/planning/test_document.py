"""A plan is a document: it goes out as JSON and comes back, shows what moved, and is undone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

import upscale
from trials.comparing import relative_error
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS, TRACED
from upscale.model.accepting import settled
from upscale.planning.document import DIGEST, VERSION, digest_of
from upscale.verify import TOLERANCE


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
    if plan.weights.rounds:
        pruned = upscale.export(model, plan)  # what is folded follows from the weights it was from
    undone = upscale.undo(pruned, other)
    assert relative_error(pruned, undone, inputs) <= TOLERANCE
    wide = settled(model)  # weights that a model computes are plain ones when undone
    assert [p.shape for p in undone.parameters()] == [p.shape for p in wide.parameters()]
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


def changed(document: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """A document with other fields; those of a part are changed within it."""
    return document | {
        name: document[name] | value if name in ("graph", "weights", "masks", "report") else value
        for name, value in change.items()
    }


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"kept": 3},
        {"kept": {"a": ["0"]}},
        {"weights": {"cuts": {"a": {"x": [0]}}}},
        {"report": {"order_cost": "much"}},
        {"graph": {"constants": [1]}},
        {"more": 1},
        {"graph": {"more": 1}},
        {"graph": {"edges": [{"node": "a"}]}},
    ],
)
def test_json_that_is_no_plan_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(planned("Residual")[2].to_json())
    with pytest.raises(upscale.PlanError):
        upscale.Plan.from_json(json.dumps(changed(document, change)))


def test_an_edge_that_reads_nothing_is_refused() -> None:
    document = json.loads(planned("Residual")[2].to_json())
    document["graph"]["edges"][0]["pieces"] = []
    with pytest.raises(upscale.PlanError, match="reads nothing"):
        upscale.Plan.from_json(json.dumps(document))


@pytest.mark.parametrize(
    "change",
    [
        {"kept": {}},
        {"report": {"order_cost": 1.0}},
        {"report": {"order_cost": 1}},
        {"masks": {"after": {"a": [0]}}},
        {"graph": {"constants": ["a"]}},
        {"sha256": "0" * 64},
        {"made_for": ""},
    ],
)
def test_a_document_that_was_edited_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(planned("Residual")[2].to_json())
    upscale.Plan.from_json(json.dumps(document, indent=2, sort_keys=True))
    with pytest.raises(upscale.PlanError, match="digest"):
        upscale.Plan.from_json(json.dumps(changed(document, change)))


def test_a_document_of_an_older_version_says_so() -> None:
    document = json.loads(planned("Residual")[2].to_json())
    del document["sha256"]
    with pytest.raises(upscale.PlanError, match="an older upscale wrote it"):
        upscale.Plan.from_json(json.dumps(document | {"version": 1}))


def first_slice(document: dict[str, Any]) -> dict[str, Any]:
    """A piece of an edge that takes a part of a value."""
    pieces = (piece for edge in document["graph"]["edges"] for piece in edge["pieces"])
    found: dict[str, Any] = next(p for p in pieces if p["start"] > 0 and p["indices"] is None)
    return found


def first_cut(document: dict[str, Any]) -> list[int]:
    """The indices along an axis that a weight keeps."""
    found: list[int] = next(
        own
        for name, by_axis in document["weights"]["cuts"].items()
        for own in by_axis.values()
        if name.endswith("weight") and len(own) > 2
    )
    return found


def first_layer(document: dict[str, Any]) -> str:
    """A layer whose weight is cut."""
    return next(iter(document["kept"])).removesuffix(".weight")


def forge(document: dict[str, Any], lie: str) -> None:
    """Make a plan say one thing and do another."""
    cut, kept = first_cut(document), document["kept"]
    if lie == "another slice":
        first_slice(document)["start"] -= 1
    elif lie == "other channels":
        cut[0], cut[1] = cut[1], cut[0]
    elif lie == "a channel twice":
        cut[1] = cut[0]
    elif lie == "a column more":
        name = next(name for name, own in kept.items() if 0 < len(own) < max(own) + 1)
        kept[name] = sorted({*kept[name], *range(max(kept[name]))})
    elif lie == "no such node":
        document["graph"]["edges"][0]["node"] = "nobody"
    elif lie == "a node that is gone":
        document["graph"]["gone"].append(document["graph"]["edges"][-1]["node"])
    elif lie == "no such channel":
        cut[0] = 10**6
    elif lie == "endless zeros":
        first_slice(document).update(zeros=True, length=2**40)
    elif lie == "a column below zero":
        kept[next(name for name, own in kept.items() if own)][0] = -1
    elif lie == "masks nowhere":
        document["masks"]["after"] = {"nowhere": [0]}
    elif lie == "a mask beyond the last channel":
        document["masks"]["after"] = {first_layer(document): [10**6]}
    elif lie == "a column beyond the last":
        kept[next(name for name, own in kept.items() if own)].append(10**6)


LIES = (
    *("another slice", "other channels", "a channel twice", "a column more", "no such node"),
    *("a node that is gone", "no such channel", "endless zeros", "masks nowhere"),
    *("a column below zero", "a column beyond the last", "a mask beyond the last channel"),
)


@pytest.mark.parametrize("lie", LIES)
def test_a_forged_plan_exports_what_it_says_or_is_refused(lie: str) -> None:
    model, inputs, plan = planned("Residual")
    fields = json.loads(plan.to_json())
    version, _ = fields.pop(VERSION), fields.pop(DIGEST)
    before = json.dumps(fields)
    forge(fields, lie)
    assert json.dumps(fields) != before
    forged = {VERSION: version, DIGEST: digest_of(fields), **fields}
    read = upscale.Plan.from_json(json.dumps(forged))
    with pytest.raises(upscale.PlanError):
        upscale.export(model, read, inputs)


def test_an_example_of_zeros_does_not_hide_what_a_forged_plan_does() -> None:
    model, inputs, plan = planned("Residual")
    fields = json.loads(plan.to_json())
    version, _ = fields.pop(VERSION), fields.pop(DIGEST)
    forge(fields, "other channels")
    forged = {VERSION: version, DIGEST: digest_of(fields), **fields}
    with pytest.raises(upscale.PlanError, match="what it says"):
        upscale.export(model, upscale.Plan.from_json(json.dumps(forged)), torch.zeros_like(inputs))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "3", '{"version": NaN}'])
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
