"""The paper's models and three more: exact exports, from which all that may leave has left."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import upscale
from trials.comparing import error_between, wide_outputs
from trials.lively import calm, enliven, images
from trials.masks import random_selection
from upscale.verify import TOLERANCE
from upscale.zoo import torchvision_model

MODELS = """
    densenet121 mnasnet0_75 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small
    resnet18 resnet50 resnet101 squeezenet1_0 squeezenet1_1 googlenet efficientnet_b0 vgg11_bn
""".split()
# Of a family whose members differ in width and depth alone, one is tried every time.
LARGER = {"mnasnet1_3", "mobilenet_v3_large", "resnet101", "squeezenet1_0"}
OPTIONS: dict[str, dict[str, Any]] = {"googlenet": {"init_weights": False}}  # else it warns
SHARES = (0.25, 0.75)
EXAMPLE = (1, 3, 48, 48)
ANOTHER = (2, 3, 56, 64)

heavy = pytest.mark.heavy
every_model_and_share = pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param(name, share, marks=heavy if name in LARGER else ())
        for name in MODELS
        for share in SHARES
    ],
)
# Each model with one of the shares, and with the other among what is heavy.
every_model_at_a_share = pytest.mark.parametrize(
    ("name", "share"),
    [
        pytest.param(name, share, marks=heavy if name in LARGER or (at + turn) % 2 else ())
        for at, name in enumerate(MODELS)
        for turn, share in enumerate(SHARES)
    ],
)


def make(name: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = torchvision_model(name, **OPTIONS.get(name, {}))
    if name.startswith("vgg"):
        # Its hidden layers hold a hundred million numbers; a few of their channels will do.
        wide, last = model.classifier[0].in_features, model.classifier[6].out_features
        model.classifier[0] = nn.Linear(wide, 64)
        model.classifier[3], model.classifier[6] = (
            nn.Linear(64, 64),
            nn.Linear(64, last),
        )
    return calm(model)


def seed_of(name: str, share: float) -> int:
    return 2 * MODELS.index(name) + SHARES.index(share)


def assert_exports_are_exact(
    model: nn.Module, selection: upscale.Selection, shapes: dict[str, list[tuple[int, ...]]]
) -> None:
    """Hold the export of each order against the masked model, on images of the shapes given."""
    masked = upscale.mask(model, selection)
    compared = {shape: images(shape) for every in shapes.values() for shape in every}
    expected = {shape: wide_outputs(masked, x) for shape, x in compared.items()}
    for order, here in shapes.items():
        plan = upscale.plan(model, images(EXAMPLE), selection, order=order)
        exported = upscale.export(model, plan)
        for shape in here:
            error = error_between(wide_outputs(exported, compared[shape]), expected[shape])
            assert error <= TOLERANCE, f"order {order}, input {shape}: {error}\n{plan}"


@every_model_and_share
def test_an_export_equals_the_masked_model_at_the_examples_size_and_another(
    name: str, share: float
) -> None:
    model = make(name, seed_of(name, share))
    selection = random_selection(model, share, seed_of(name, share), empty=False)
    enliven(model, [selection], images((4, *EXAMPLE[1:])))
    with torch.inference_mode():
        one, other = upscale.mask(model, selection)(images((2, *EXAMPLE[1:])))
    assert (one - other).abs().max() > 0.01 * one.abs().max(), "constants are always equal"
    assert_exports_are_exact(model, selection, {"optimal": [EXAMPLE, ANOTHER], "none": [ANOTHER]})


@every_model_at_a_share
def test_an_export_equals_the_masked_model_where_some_layers_keep_nothing(
    name: str, share: float
) -> None:
    seed = 100 + seed_of(name, share)
    model = make(name, seed)
    selection = random_selection(model, share, seed)
    while all(selection.kept.values()):
        seed += 100
        selection = random_selection(model, share, seed)
    assert_exports_are_exact(model, selection, {"optimal": [ANOTHER], "none": [ANOTHER]})


class NothingSaturates(TorchFunctionMode):
    """Every activation becomes one whose slope is never zero, so that no gradient is by chance."""

    ACTIVATIONS = frozenset(
        {F.relu, F.relu6, F.hardtanh, F.hardswish, F.hardsigmoid, F.silu, torch.sigmoid}
    )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in self.ACTIVATIONS:
            return F.leaky_relu(args[0], 0.5)
        return func(*args, **(kwargs or {}))


def live_rows(masked: nn.Module) -> dict[str, int]:
    """How many outputs of each layer the model's output depends on: those with a gradient.

    What nothing reads, or only weights that are zero, has a gradient of exactly zero.
    """
    model = masked.double()
    with NothingSaturates():
        out = model(images((2, 3, 48, 48)).double())
    (out * torch.randn_like(out)).sum().backward()
    return {
        name: int(layer.weight.grad.reshape(len(layer.weight), -1).any(1).sum())
        for name, layer in model.named_modules()
        if isinstance(getattr(layer, "weight", None), Tensor) and layer.weight.grad is not None
    }


def allowed_shapes(model: nn.Module, selection: upscale.Selection) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor an export should hold: rows that live, columns that are kept."""
    shapes: dict[str, tuple[int, ...]] = {}
    rows = live_rows(upscale.mask(model, selection))
    for path, tensor in model.state_dict().items():
        layer, _, kind = path.rpartition(".")
        if rows.get(layer, 0) == 0:
            continue  # never reached, or nothing reads it
        if kind == "num_batches_tracked":
            shapes[path] = ()
        elif kind == "weight" and layer in selection.kept:
            columns = len(tuple(selection.kept[layer]))
            shapes[path] = (rows[layer], columns, *tensor.shape[2:])
        else:
            shapes[path] = (rows[layer],)
    return shapes


@every_model_at_a_share
def test_an_export_holds_live_rows_and_kept_columns_and_nothing_else(
    name: str, share: float
) -> None:
    seed = 200 + seed_of(name, share)
    model = make(name, seed)
    selection = random_selection(model, share, seed, empty=False)
    plan = upscale.plan(model, images(EXAMPLE), selection, widen=False)
    exported = upscale.export(model, plan)
    held = {path: tuple(tensor.shape) for path, tensor in exported.state_dict().items()}
    assert held == allowed_shapes(model, selection)
