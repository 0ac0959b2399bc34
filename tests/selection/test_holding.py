"""Masks that hold: outputs zero where asked, through training, saving and loading, and steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

import upscale
from trials.lively import calm
from upscale import Selection
from upscale.capture import Example
from upscale.verify import compare


class Net(nn.Module):
    """A layer with a BatchNorm of its own, one whose output two readers share, one grouped."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.b, self.shared = nn.Conv2d(6, 8, 1), nn.BatchNorm2d(8)
        self.c = nn.ConvTranspose2d(8, 4, 2, groups=2)
        self.d = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.a(x)))
        y = self.b(x)
        return self.d(self.c(self.shared(y) + y).mean((2, 3)))


def net() -> Net:
    torch.manual_seed(0)
    return calm(Net())  # type: ignore[return-value]


def output_of(model: nn.Module, name: str, x: Tensor) -> Tensor:
    seen: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_hook(lambda *given: seen.append(given[2]))
    model(x)
    hook.remove()
    return seen[0]


X = torch.randn(4, 3, 6, 6)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("after", "where", "name", "kept", "gone"),
    [
        ("norm", "norm", "a", [0, 3], [1, 2, 4, 5]),
        ("layer", "a", "a", [0, 3], [1, 2, 4, 5]),
        ("norm", "b", "b", [0, 1, 2], [3, 4, 5, 6, 7]),  # its BatchNorm is not its only reader
        ("norm", "c", "c", [1], [0, 2]),  # groups of a transposed convolution share rows
        ("norm", "d", "d", [], [0, 1, 2, 3, 4]),
    ],
)
def test_pruned_outputs_are_zero_where_asked(
    after: str, where: str, name: str, kept: list[int], gone: list[int], training: bool
) -> None:
    model = net().train(training)
    selection = Selection(kept={name: kept}, side="output", after=after)
    masked = upscale.mask(model, selection)
    plain, held = output_of(model, where, X), output_of(masked, where, X)
    channels = range(plain.shape[1])
    assert not held[:, gone].any()
    left = [channel for channel in channels if channel not in gone]
    torch.testing.assert_close(held[:, left], plain[:, left])
    assert plain[:, gone].any()


def test_an_output_mask_is_found_through_an_example_where_defaults_hide_the_graph() -> None:
    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.a(x)) if x.sum() > 0 else x

    selection = Selection(kept={"a": [0]}, side="output")
    with pytest.raises(upscale.SelectionError, match="after='layer'"):
        upscale.mask(Decides(), selection)
    layered = Selection(kept={"a": [0]}, side="output", after="layer")
    assert isinstance(upscale.mask(Decides(), layered), Decides)


@pytest.mark.parametrize("side", ["input", "output"])
def test_masks_hold_through_training_saving_and_loading(side: str) -> None:
    model = net().train()
    selection = upscale.select(model.eval(), X, amount=0.5, side=side)
    masked = upscale.mask(model, selection).train()
    optimiser = torch.optim.SGD(masked.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        masked(X).square().mean().backward()
        optimiser.step()
    fresh = upscale.mask(net(), selection)
    fresh.load_state_dict(masked.state_dict())
    masked.eval(), fresh.eval()
    torch.testing.assert_close(masked(X), fresh(X))
    if side == "input":
        exported = upscale.export(masked, upscale.plan(masked, X, selection))
        compared = compare(exported, masked, Example.of(X))
        assert compared.relative_error <= 1e-10
    else:
        where = "norm"
        gone = sorted(set(range(6)) - set(selection.kept["a"]))
        assert not output_of(masked, where, X)[:, gone].any()


def test_steps_prune_ever_more_and_let_the_model_train_in_between() -> None:
    model = net()
    seen: list[set[int]] = []

    def tune(masked: nn.Module, step: int) -> None:
        with torch.no_grad():
            for parameter in masked.parameters():
                parameter.add_(0.1)
        masked(X)
        weight = masked.get_submodule("b").weight
        assert isinstance(weight, Tensor)
        seen.append(set((weight == 0).all(dim=0).flatten().nonzero().flatten().tolist()))

    before = copy.deepcopy(model.state_dict())
    pruned = upscale.prune(model, X, amount=0.6, steps=3, tune=tune)
    first, second, third = seen
    assert first < second < third
    assert pruned.get_submodule("b").in_channels < 6
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name])


def test_steps_below_one_are_refused() -> None:
    with pytest.raises(upscale.SelectionError, match="steps is 0"):
        upscale.prune(net(), X, amount=0.5, steps=0)


def test_recalibration_renews_statistics_and_nothing_else() -> None:
    model = net()
    model.b.training = True  # a mode of its own, which must survive
    parameters = {name: p.clone() for name, p in model.named_parameters()}
    batches = [(torch.randn(8, 3, 6, 6), torch.zeros(8)) for _ in range(3)]
    assert upscale.recalibrate(model, batches) is model
    hidden = torch.cat([model.a(x) for x, _ in batches])
    torch.testing.assert_close(
        model.norm.running_mean, hidden.mean((0, 2, 3)), rtol=1e-4, atol=1e-5
    )
    assert model.norm.momentum == 0.1
    assert model.b.training
    assert not model.norm.training
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, parameters[name])
    with pytest.raises(upscale.SelectionError, match="there are none"):
        upscale.recalibrate(model, [])


@pytest.mark.parametrize("permanent", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_masks_of_torchs_own_pruning_export(axis: int, permanent: bool) -> None:
    model = net()
    for layer in (model.a, model.b, model.d):
        prune.ln_structured(layer, "weight", amount=0.5, n=2, dim=axis)
    model(X)
    if permanent:
        for layer in (model.a, model.b, model.d):
            prune.remove(layer, "weight")
    names = set(dict(model.named_parameters()))
    plan = upscale.plan(model, X)
    exported = upscale.export(model, plan)
    torch.testing.assert_close(exported(X), model(X))
    assert set(dict(model.named_parameters())) == names
    if axis == 1:
        assert exported.get_submodule("b").in_channels == 3
        assert exported.get_submodule("a").out_channels == 3


def test_columns_zeroed_by_hand_leave() -> None:
    model = net()
    with torch.no_grad():
        model.b.weight[:, [1, 4]] = 0
    exported = upscale.export(model, upscale.plan(model, X))
    torch.testing.assert_close(exported(X), model(X))
    assert exported.get_submodule("a").out_channels == 4
