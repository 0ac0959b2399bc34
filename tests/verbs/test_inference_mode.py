"""Under inference mode every verb gives ordinary parameters: they train, copy, save and count."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.two, self.three = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.one(x)))
        return self.head((self.two(x).sigmoid() + self.three(x)).mean(dim=(2, 3)))


def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def example() -> Tensor:
    return torch.randn(2, 1, 6, 6)


@pytest.fixture(params=["made before", "made under it too"])
def given(request: pytest.FixtureRequest) -> Iterator[tuple[nn.Module, Tensor]]:
    """A model and an example, and inference mode while the test runs."""
    early = request.param == "made before"
    made = (net(), example()) if early else None
    with torch.inference_mode():
        yield made or (net(), example())


def assert_ordinary(model: nn.Module) -> None:
    """A model can be copied and trained, and its tensors have versions."""
    owned = (*model.parameters(), *model.buffers())
    assert not any(own.is_inference() for own in owned)
    assert all(own._version >= 0 for own in owned)
    assert all(own.requires_grad for own in model.parameters())
    with torch.inference_mode(mode=False):
        twin = copy.deepcopy(model).train()
        optimizer = torch.optim.SGD(twin.parameters(), 0.1)
        twin(torch.randn(4, 1, 6, 6)).square().mean().backward()
        optimizer.step()
        assert any(
            not torch.equal(a, b)
            for a, b in zip(twin.parameters(), model.parameters(), strict=True)
        )


@pytest.mark.parametrize("side", ["input", "output"])
def test_select_mask_plan_and_export(given: tuple[nn.Module, Tensor], side: str) -> None:
    model, x = given
    selection = upscale.select(model, x, amount=0.5, side=side)
    masked = upscale.mask(model, selection, example=x)
    pruned = upscale.export(model, upscale.plan(model, x, selection))
    torch.testing.assert_close(pruned(x), masked(x))
    assert_ordinary(masked)
    assert_ordinary(pruned)
    assert_ordinary(upscale.export(masked, upscale.plan(masked, x)))


def test_prune_undo_save_and_load(given: tuple[nn.Module, Tensor], tmp_path: Path) -> None:
    model, x = given
    pruned = upscale.prune(model, x, amount=0.5)
    assert_ordinary(pruned)
    assert_ordinary(upscale.prune(model, x, amount=0.5, fuse=True))
    back = upscale.undo(pruned, model)
    assert_ordinary(back)
    torch.testing.assert_close(back(x), pruned(x))
    upscale.save(pruned, tmp_path / "small")
    assert_ordinary(upscale.load(tmp_path / "small"))
    assert_ordinary(upscale.load(tmp_path / "small", model))


def test_criteria_that_need_data_or_gradients(given: tuple[nn.Module, Tensor]) -> None:
    model, x = given
    batches = [(x, torch.tensor([0, 1]))]
    for importance in ("taylor", "hrank", "activation"):
        found = upscale.select(
            model, x, amount=0.5, importance=importance, data=batches, loss=F.cross_entropy
        )
        with torch.inference_mode(mode=False):
            known = [(own.clone(), labels.clone()) for own, labels in batches]
            plain = upscale.select(
                net(), x, amount=0.5, importance=importance, data=known, loss=F.cross_entropy
            )
        assert found.kept == plain.kept, importance


def test_recalibrate_renews_statistics_and_nothing_else(given: tuple[nn.Module, Tensor]) -> None:
    model, x = given
    masked = upscale.mask(model, upscale.select(model, x, amount=0.5))
    before = masked.get_submodule("norm").running_mean.clone()
    assert_ordinary(upscale.recalibrate(masked, [x]))
    assert not torch.equal(before, masked.get_submodule("norm").running_mean)
    theirs = model.get_submodule("norm").running_mean.clone()
    with torch.inference_mode(mode=False):
        upscale.recalibrate(model, [x])
    assert not torch.equal(theirs, model.get_submodule("norm").running_mean)


@pytest.mark.filterwarnings("ignore")
def test_deploy_and_survey(given: tuple[nn.Module, Tensor], tmp_path: Path) -> None:
    model, x = given
    pruned = upscale.prune(model, x, amount=0.5)
    upscale.deploy.to_exported(pruned, x, tmp_path / "small.pt2")
    upscale.deploy.to_torchscript(pruned, x, tmp_path / "small.pt")
    with torch.inference_mode(mode=False):
        upscale.deploy.to_exported(model, x, tmp_path / "whole.pt2")
        loaded = torch.jit.load(tmp_path / "small.pt")
        torch.testing.assert_close(loaded(x.clone()), pruned(x.clone()))
    assert upscale.survey(model, x).layers
    assert_ordinary(pruned)


def test_gradients_stay_off_where_they_are_off() -> None:
    model, x = net(), example()
    with torch.no_grad():
        upscale.prune(model, x, amount=0.5)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        upscale.prune(model, x, amount=0.5)
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
