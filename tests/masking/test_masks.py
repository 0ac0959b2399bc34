"""The masked model: its masks hold whatever is done to it, and its zeros alone make a plan."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import (
    NETS,
    TRACED,
    Grouped,
    OneDimensional,
    Residual,
    SharedWeight,
    UNet,
    WeightNormed,
    WeightStandardised,
    conv,
    image,
)
from upscale import Selection
from upscale.capture import Example
from upscale.model.layers import column_axis, columns
from upscale.verify import compare

KEPT = Selection(kept={"blocks.0.0": [1, 4, 9], "blocks.2.3": [], "head": range(0, 16, 3)})


def pruned_weights(model: nn.Module, selection: Selection) -> Iterator[Tensor]:
    """Of every named layer's weight, the columns that the selection does not keep."""
    for name, kept in selection.kept.items():
        layer = model.get_submodule(name)
        gone = sorted(set(range(columns(layer))) - set(kept))
        yield layer.weight.detach().movedim(column_axis(layer), 0)[gone]


def is_masked(model: nn.Module, selection: Selection) -> bool:
    return not any(weights.any() for weights in pruned_weights(model, selection))


def step(model: nn.Module, optimiser: torch.optim.Optimizer) -> float:
    torch.manual_seed(0)
    loss = (model(image(4, 8)) - 1).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["Residual", "UNet", "OneDimensional", "Grouped", "SharedWeight"])
def test_masking_zeroes_the_columns_that_are_not_kept_and_nothing_else(name: str) -> None:
    model = NETS[name][0]()
    selection = random_selection(model, 0.5, seed=3)
    masked = upscale.mask(model, selection)
    assert is_masked(masked, selection)
    for layer, kept in selection.kept.items():
        axis = column_axis(model.get_submodule(layer))
        ours, theirs = (
            m.get_submodule(layer).weight.movedim(axis, 0)[list(kept)] for m in (masked, model)
        )
        assert torch.equal(ours, theirs), layer
    for path, value in model.state_dict().items():
        if path.removesuffix(".weight") not in selection.kept:
            assert torch.equal(masked.state_dict()[path], value), path


@pytest.mark.parametrize(
    "optimiser",
    [
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ],
    ids=["sgd", "adamw"],
)
def test_masks_hold_while_the_model_trains(optimiser) -> None:
    masked = upscale.mask(Residual(), KEPT)
    stepper = optimiser(masked.parameters())
    masked.train()
    losses = [step(masked, stepper) for _ in range(8)]
    assert losses[-1] < losses[0]
    masked.eval()
    with torch.no_grad():
        masked(image(2, 8))
    assert is_masked(masked, KEPT)


def test_a_step_without_a_call_after_it_is_masked_in_the_next_call() -> None:
    masked = upscale.mask(Residual(), KEPT).eval()
    x = image(2, 8)
    before = masked(x)
    with torch.no_grad():
        for weight in (masked.get_submodule(name).weight for name in KEPT.kept):
            weight[:, 2] += weight[:, 2] == 0  # column 2 is kept nowhere
    assert torch.equal(masked(x), before)


def test_a_training_masked_model_computes_what_its_own_export_computes() -> None:
    masked = upscale.mask(Residual(), KEPT)
    stepper = torch.optim.SGD(masked.parameters(), lr=0.05)
    for _ in range(3):
        step(masked, stepper)
    masked.eval()
    exported = upscale.export(masked, upscale.plan(masked, image(1, 8), KEPT))
    assert compare(exported, masked, Example.of(image(3, 12))).exact


def test_masks_hold_through_a_state_dict_saved_and_loaded() -> None:
    model = Residual()
    masked = upscale.mask(model, KEPT)
    file = io.BytesIO()
    torch.save(masked.state_dict(), file)
    file.seek(0)
    loaded = upscale.mask(Residual(), KEPT)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    x = image(2, 8)
    assert torch.equal(loaded.eval()(x), masked.eval()(x))
    assert masked.state_dict().keys() == model.state_dict().keys()


def test_an_unmasked_state_loaded_into_a_masked_model_is_masked_in_the_next_call() -> None:
    model = Residual().eval()
    masked = upscale.mask(model, KEPT)
    x = image(2, 8)
    before = masked(x)
    masked.load_state_dict(model.state_dict())
    assert torch.equal(masked(x), before)
    assert is_masked(masked, KEPT)


def test_masks_hold_in_a_deepcopy_of_its_own() -> None:
    masked = upscale.mask(Residual(), KEPT)
    twin = copy.deepcopy(masked)
    stepper = torch.optim.SGD(twin.parameters(), lr=0.05)
    before = {path: value.clone() for path, value in masked.state_dict().items()}
    for _ in range(3):
        step(twin, stepper)
    with torch.no_grad():
        twin.eval()(image(2, 8))
    assert is_masked(twin, KEPT)
    assert all(torch.equal(value, before[path]) for path, value in masked.state_dict().items())


def test_masks_of_masks_add_up() -> None:
    first = Selection(kept={"head": range(8)})
    second = Selection(kept={"head": range(4, 16)})
    both = upscale.mask(upscale.mask(Residual(), first), second).eval()
    with torch.no_grad():
        both(image(1, 8))
    assert is_masked(both, first)
    assert is_masked(both, second)


@pytest.mark.parametrize("order", ["optimal", "none"])
@pytest.mark.parametrize("name", TRACED)
def test_a_plan_without_a_selection_reads_it_from_the_masked_models_zeros(
    name: str, order: str
) -> None:
    make, example = NETS[name]
    model = calm(make())
    selection = random_selection(model, 0.5, seed=5)
    masked = upscale.mask(model, selection)
    read = upscale.plan(masked, example(1, 12), order=order)
    exported = upscale.export(masked, read)
    for batch, size in ((1, 12), (3, 16)):
        assert compare(exported, masked, Example.of(example(batch, size))).exact


@pytest.mark.parametrize("make", [Residual, UNet, OneDimensional, SharedWeight, Grouped])
def test_the_selection_and_the_zeros_it_leaves_make_one_export(make: type[nn.Module]) -> None:
    _, example = NETS[make.__name__]
    model = calm(make())
    selection = random_selection(model, 0.5, seed=6)
    masked = upscale.mask(model, selection)
    given = upscale.export(model, upscale.plan(model, example(1, 12), selection))
    read = upscale.export(masked, upscale.plan(masked, example(1, 12)))
    assert {k: v.shape for k, v in given.state_dict().items()} == {
        k: v.shape for k, v in read.state_dict().items()
    }
    assert all(torch.equal(v, read.state_dict()[k]) for k, v in given.state_dict().items())


def test_zeros_that_training_left_in_an_ordinary_model_are_a_selection_too() -> None:
    model = calm(Residual())
    with torch.no_grad():
        model.head.weight[:, ::2] = 0
        model.blocks[1][3].weight[:, 3] = 0
    exported = upscale.export(model, upscale.plan(model, image(1, 8)))
    assert exported.head.weight.shape == (4, 8)
    assert exported.get_submodule("blocks.1.3").weight.shape[1] == 7
    assert compare(exported, model, Example.of(image(2, 12))).exact


COMPUTED = {
    "standardised": (WeightStandardised, "b"),
    "weight norm": (WeightNormed, "b"),
    "spectral norm": (
        lambda: nn.Sequential(conv(3, 8), parametrizations.spectral_norm(conv(8, 8)), conv(8, 4)),
        "1",
    ),
    "orthogonal": (
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(192, 8), parametrizations.orthogonal(nn.Linear(8, 6))
        ),
        "2",
    ),
}

every_computed = pytest.mark.parametrize("kind", COMPUTED)


def blind_to_what_is_pruned(masked: nn.Module, layer: str, kept: list[int]) -> bool:
    """Whether a layer's result is the same whatever the channels it does not keep carry."""
    module = masked.get_submodule(layer)
    gone = sorted(set(range(8)) - set(kept))
    x = torch.randn(2, 8, 6, 6) if isinstance(module, nn.Conv2d) else torch.randn(2, 8)
    other = x.clone()
    other[:, gone] = torch.randn_like(other[:, gone])
    used = x.clone()
    used[:, kept] = torch.randn_like(used[:, kept])
    with torch.no_grad():
        result = module(x)
        return torch.equal(module(other), result) and not torch.equal(module(used), result)


@every_computed
def test_a_layer_that_computes_its_weight_has_the_computed_weight_masked(kind: str) -> None:
    make, layer = COMPUTED[kind]
    model = make().eval()
    kept = [0, 3, 4]
    masked = upscale.mask(model, Selection(kept={layer: kept}))
    assert blind_to_what_is_pruned(masked, layer, kept)


@every_computed
def test_a_computed_weights_mask_holds_while_the_model_trains_and_in_a_copy(kind: str) -> None:
    make, layer = COMPUTED[kind]
    kept = [1, 2, 6]
    masked = upscale.mask(make().eval(), Selection(kept={layer: kept})).train()
    stepper = torch.optim.SGD(masked.parameters(), lr=0.01)
    for _ in range(3):
        step(masked, stepper)
    with torch.no_grad():
        masked.eval()(image(4, 8))
    assert blind_to_what_is_pruned(masked, layer, kept)
    assert blind_to_what_is_pruned(copy.deepcopy(masked), layer, kept)


@every_computed
@pytest.mark.parametrize("kept", [[0, 3, 4], [7], []], ids=["some", "one", "none"])
def test_an_export_of_a_layer_that_computes_its_weight_equals_the_masked_model(
    kind: str, kept: list[int]
) -> None:
    make, layer = COMPUTED[kind]
    model = calm(make())
    selection = Selection(kept={layer: kept})
    exported = upscale.export(model, upscale.plan(model, image(1, 8), selection))
    assert compare(exported, upscale.mask(model, selection), Example.of(image(3, 8))).exact


@every_computed
def test_a_masked_layer_that_computes_its_weight_can_be_planned_without_a_selection(
    kind: str,
) -> None:
    make, layer = COMPUTED[kind]
    masked = upscale.mask(calm(make()), Selection(kept={layer: [0, 3, 4]}))
    exported = upscale.export(masked, upscale.plan(masked, image(1, 8)))
    assert compare(exported, masked, Example.of(image(3, 8))).exact


def test_a_failing_call_does_not_leave_a_computed_weights_mask_behind() -> None:
    masked = upscale.mask(WeightStandardised(), Selection(kept={"b": [0]}))
    other, x = conv(8, 8), torch.randn(1, 8, 6, 6)  # a weight of the shape the mask looks for
    before = other(x)
    with pytest.raises(RuntimeError, match="channels"):
        masked.b(torch.randn(1, 5, 6, 6))
    assert torch.equal(other(x), before)
    assert blind_to_what_is_pruned(masked, "b", [0])


def test_a_masked_model_exports_with_its_masks_right_after_an_optimisers_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    masked = upscale.mask(model, Selection(kept={"2": [1, 3, 4]}))
    optimiser = torch.optim.Adam(masked.parameters(), lr=0.1)
    x = torch.randn(16, 4)
    for _ in range(2):
        optimiser.zero_grad()
        masked(x).square().sum().backward()
        optimiser.step()
    pruned = upscale.export(masked, upscale.plan(masked, x))
    assert pruned.get_submodule("0").out_features == 3
    torch.testing.assert_close(pruned(x), masked(x))
