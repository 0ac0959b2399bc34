"""Layers called twice, shared weights, sums, and weights that are computed from others."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import upscale
from trials.comparing import relative_error
from upscale import Recovery, Selection
from upscale.recovery.side_by_side import PRUNED, SideBySide


class Twice(nn.Module):
    """One layer called twice; what runs before and between it reads what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(6, 10), nn.Linear(10, 10)
        self.between, self.last = nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(self.layer(x))
        x = torch.relu(self.between(x))
        return self.last(torch.relu(self.layer(x)))


class Shared(Twice):
    """Two layers with one weight, and biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(10, 10)
        self.again.weight = self.layer.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.layer(torch.relu(self.first(x))))
        return self.last(torch.relu(self.again(torch.relu(self.between(x)))))


def batches(width: int = 6) -> list[Tensor]:
    draws = torch.Generator().manual_seed(1)
    return [torch.randn(40, width, generator=draws).double() for _ in range(4)]


def far(model: nn.Module, other: nn.Module) -> float:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(9)).double()
    with torch.no_grad():
        return float((model(x) - other(x)).square().mean())


def test_what_ran_before_a_joint_fit_was_done_is_run_again() -> None:
    """The layer between the two calls is fitted to what the fitted layer gives, not the old one."""
    torch.manual_seed(0)
    model = Twice().double().eval()
    kept = Selection(kept={"layer": [0, 1, 2, 4, 5, 7, 9]})
    seen: dict[str, Tensor] = {}
    original = SideBySide.run

    def run(self: SideBySide, network: str, node: torch.fx.Node) -> None:
        original(self, network, node)
        if network == PRUNED:
            seen[node.name] = self.value(network, node.name, 0)

    with mock.patch.object(SideBySide, "run", run):
        recovered = upscale.recover(model, kept, batches())
    # What the last runs of every node made is what the finished model makes there.
    names = {"layer": "layer", "between": "between", "layer_1": "layer"}
    made: dict[str, list[Tensor]] = {name: [] for name in names.values()}
    for name in made:
        recovered.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, own=made[name]: own.append(out.detach())
        )
    recovered(batches()[0])
    calls = {"layer": made["layer"][0], "between": made["between"][0], "layer_1": made["layer"][1]}
    for node, own in calls.items():
        assert torch.allclose(seen[node], own, rtol=0, atol=1e-12), node
    told = Recovery.of(recovered)
    assert told is not None
    order = [refit.weight for refit in told.refits]
    assert order == ["layer.weight", "between.weight", "last.weight"]


@pytest.mark.parametrize("kind", [Twice, Shared])
def test_layers_of_one_weight_get_one_fit_or_stay_and_the_rest_makes_up(
    kind: type[nn.Module],
) -> None:
    torch.manual_seed(0)
    model = kind().double().eval()
    kept = [0, 1, 2, 4, 5, 7, 9]
    names = ["layer", "again"] if kind is Shared else ["layer"]
    selection = Selection(kept=dict.fromkeys(names, kept))
    recovered = upscale.recover(model, selection, batches())
    assert far(recovered, model) < far(upscale.mask(model, selection), model)
    told = Recovery.of(recovered)
    assert told is not None
    weights = [refit.weight for refit in told.refits]
    assert weights.count("layer.weight") + ("layer" in told.left) == 1
    if kind is Shared:
        assert recovered.get_submodule("again").weight is recovered.get_submodule("layer").weight
    plan = upscale.plan(recovered, batches()[0][:2], told.selections)
    assert relative_error(upscale.export(recovered, plan), recovered, batches()[1]) <= 1e-10


@pytest.mark.parametrize("computed", [weight_norm, spectral_norm])
def test_computed_weights_are_plain_in_what_was_recovered(computed: object) -> None:
    torch.manual_seed(0)
    assert callable(computed)
    first, last = nn.Linear(6, 12), computed(nn.Linear(12, 3))
    model = nn.Sequential(first, nn.ReLU(), last).double().eval()
    selection = Selection(kept={"2": [0, 1, 2, 4, 5, 8, 9, 11]})
    recovered = upscale.recover(model, selection, batches())
    layer = recovered.get_submodule("2")
    assert type(layer) is nn.Linear
    assert isinstance(layer.weight, nn.Parameter)
    assert hasattr(model[2], "parametrizations")
    assert far(recovered, model) < far(upscale.mask(model, selection), model)
    plan = upscale.plan(recovered, batches()[0][:2], selection)
    assert relative_error(upscale.export(recovered, plan), recovered, batches()[1]) <= 1e-10


def test_a_fit_that_would_do_worse_on_what_is_held_out_is_not_made() -> None:
    """Four samples say little of ten columns, and the last batch contradicts them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3)).double().eval()
    selection = Selection(kept={"2": range(9)})
    x = torch.randn(5, 6).double()
    x[4] *= 100  # the fifth sample is held out
    with pytest.warns(upscale.RecoveryWarning):
        recovered = upscale.recover(model, selection, [x])
    told = Recovery.of(recovered)
    assert told is not None
    (refit,) = told.refits
    assert refit.kept
    weight = model[2].weight.clone()
    weight[:, 9] = 0
    assert torch.equal(recovered.get_submodule("2").weight, weight)
