"""A layer without bias and norm can be given one; unless asked for, no parameter is added."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.comparing import relative_error
from upscale import Recovery, Selection


class Bare(nn.Module):
    """Layers without biases: with a norm behind, on their own, transposed, sharing a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.normed, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.alone = nn.Conv2d(8, 8, 1, groups=2, bias=False)
        self.up = nn.ConvTranspose2d(8, 6, 2, 2, groups=2, bias=False)
        self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.two.weight = self.one.weight
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.alone(torch.relu(self.norm(self.normed(x)))))
        x = torch.relu(self.up(x)).mean(dim=(2, 3))
        return self.head(torch.relu(self.two(torch.relu(self.one(x)))))


KEPT = Selection(kept={"alone": [0, 2], "head": [0, 1, 4, 5]})
ADDED = {"alone.bias", "up.bias"}


def made() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = Bare().double().train()
    for _ in range(10):
        model(torch.rand(32, 3, 8, 8).double())
    return model.eval(), [torch.rand(32, 3, 8, 8).double() for _ in range(4)]


def test_no_parameter_is_added_unless_asked_for() -> None:
    model, batches = made()
    recovered = upscale.recover(model, KEPT, batches)
    assert recovered.state_dict().keys() == model.state_dict().keys()
    with_biases = upscale.recover(model, KEPT, batches, bias=True)
    assert with_biases.state_dict().keys() - model.state_dict().keys() == ADDED
    assert not ADDED & model.state_dict().keys()


def test_an_added_bias_makes_up_for_what_columns_added_on_average() -> None:
    model, batches = made()
    x = torch.rand(64, 3, 8, 8).double()
    plain, biased = (upscale.recover(model, KEPT, batches, bias=own) for own in (False, True))
    errors = [
        {refit.weight: refit.after for refit in told.refits}
        for told in map(Recovery.of, (plain, biased))
        if told is not None
    ]
    assert errors[1]["alone.weight"] < errors[0]["alone.weight"]
    told = Recovery.of(biased)
    assert told is not None
    plan = upscale.plan(biased, x[:1], told.selections)
    assert relative_error(upscale.export(biased, plan), biased, x) <= 1e-10


def test_a_plan_chooses_columns_and_biases_want_a_plan_of_their_own() -> None:
    model, batches = made()
    plan = upscale.plan(model, batches[0][:1], KEPT)
    told = Recovery.of(upscale.recover(model, KEPT, batches, bias=True, plan=plan))
    assert told is not None
    assert told.plan is None


def test_pruning_adds_biases_and_verifies_with_them() -> None:
    model, batches = made()
    x = batches[0][:1]
    given = {"amount": 0.3, "data": batches, "recover": True}
    pruned = upscale.prune(model, x, bias=True, **given)
    assert pruned.meta["verified"].exact
    assert pruned.state_dict().keys() >= ADDED
    assert not upscale.prune(model, x, **given).state_dict().keys() & ADDED
    with pytest.raises(upscale.SelectionError, match="recover=True"):
        upscale.prune(model, x, amount=0.3, data=batches, bias=True, recover="norms")


def test_a_model_that_only_torch_export_can_capture_gets_biases_too() -> None:
    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 10, bias=False), nn.Linear(10, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.first(x))
            return self.second(x) if x.shape[1] > 2 else x

    torch.manual_seed(0)
    model = Asking().double().eval()
    batches = [torch.rand(40, 6).double() for _ in range(3)]
    selection = Selection(kept={"second": [0, 2, 3, 5, 8]})
    recovered = upscale.recover(model, selection, batches, bias=True)
    assert recovered.get_submodule("second").bias.any()
    pruned = upscale.export(recovered, upscale.plan(recovered, batches[0][:2], selection))
    assert relative_error(pruned, recovered, batches[1]) <= 1e-10
