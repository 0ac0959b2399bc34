"""Each criterion against a few-line definition of its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from upscale.selection.importance import CRITERIA, Context, Random, Study, score


def study(model: nn.Module, side: str, **given: object) -> Study:
    names = tuple(n for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    known = {"data": None, "loss": None, "inputs": 1, "norms": dict, "curves": dict}
    return Study(model=model, names=names, side=side, **{**known, **given})  # type: ignore[arg-type]


def channels(weight: Tensor, side: str) -> list[Tensor]:
    """The weights of each channel, flat, by plain indexing."""
    if side == "input":
        return [weight[:, channel].reshape(-1) for channel in range(weight.shape[1])]
    return [weight[channel].reshape(-1) for channel in range(weight.shape[0])]


def by_hand(name: str, flat: list[Tensor]) -> list[float]:
    if name == "l1":
        return [float(sum(abs(x) for x in c.tolist())) for c in flat]
    if name == "l2":
        return [float(sum(x * x for x in c.tolist())) ** 0.5 for c in flat]
    if name == "lamp":
        squares = [float(sum(x * x for x in c.tolist())) for c in flat]
        return [s / sum(other for other in squares if other >= s) for s in squares]
    return [sum(float((a - b).norm()) for b in flat) for a in flat]


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("name", ["l1", "l2", "lamp", "fpgm"])
@pytest.mark.parametrize("width", [5, 300])
def test_a_weight_criterion_is_what_its_paper_says(name: str, side: str, width: int) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(width, 6, 3).double()
    found = score(name, study(nn.Sequential(layer), side))["0"].tolist()
    assert found == pytest.approx(by_hand(name, channels(layer.weight.detach(), side)))


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_transposed_convolutions_columns_are_its_inputs(side: str) -> None:
    layer = nn.ConvTranspose2d(4, 6, 3)
    context = Context("0", layer, side)
    weight = layer.weight.detach().movedim(0, 1)
    found = CRITERIA["l1"].scorer(weight, context)  # type: ignore[attr-defined]
    axis = (1, 2, 3) if side == "input" else (0, 2, 3)
    torch.testing.assert_close(found, layer.weight.detach().abs().sum(axis))


def test_lamp_scores_stand_with_their_own_channels() -> None:
    """Unsorted norms: applying the sort's permutation instead of its inverse would show."""
    weight = torch.diag(torch.tensor([3.0, 1.0, 2.0]))
    model = nn.Sequential(nn.Linear(3, 3, bias=False))
    model[0].weight.data = weight
    found = score("lamp", study(model, "input"))["0"]
    torch.testing.assert_close(found, torch.tensor([1.0, 1 / 14, 4 / 13]).double())


class Maps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 3, groups=2)
        self.c = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(F.relu(self.a(x))).mean((2, 3)))


def maps_read(model: Maps, x: Tensor) -> tuple[Tensor, Tensor]:
    hidden = F.relu(model.a(x))
    return hidden, model.b(hidden)


def test_hrank_is_the_mean_rank_of_the_maps_a_layer_reads() -> None:
    torch.manual_seed(0)
    model = Maps()
    model.a.weight.data[1] = 0  # a constant map: rank one, or none
    batches = [torch.randn(2, 3, 10, 10), torch.randn(3, 3, 10, 10)]
    found = score("hrank", study(model, "input", data=batches))
    ranks = torch.zeros(4)
    for x in batches:
        hidden, _ = maps_read(model, x)
        for image in hidden:
            for channel, one in enumerate(image):
                ranks[channel] += torch.linalg.matrix_rank(one)
    expected = (ranks / 5).reshape(2, 2).sum(0)  # the groups of b share columns
    torch.testing.assert_close(found["b"], expected.double())


def test_activation_is_the_mean_magnitude_of_what_a_layer_makes() -> None:
    model = Maps()
    x = torch.randn(4, 3, 10, 10)
    found = score("activation", study(model, "output", data=[(x, torch.zeros(4))]))
    torch.testing.assert_close(found["b"], maps_read(model, x)[1].abs().mean((0, 2, 3)).double())


@pytest.mark.parametrize("side", ["input", "output"])
def test_taylor_is_the_squared_slope_times_weight(side: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).requires_grad_(False)
    batches = [(torch.randn(5, 4), torch.randn(5, 2)) for _ in range(2)]
    given: dict[str, Any] = {"data": batches, "loss": F.mse_loss}
    found = score("taylor", study(copy.deepcopy(model), side, **given))["2"]
    upscale.select(model, batches[0][0], amount=0.5, importance="taylor", side=side, **given)
    expected = torch.zeros_like(found)
    for x, y in batches:
        weight = model[2].weight.clone().requires_grad_(True)
        hidden = model[:2](x)
        F.mse_loss(F.linear(hidden, weight, model[2].bias), y).backward()
        change = (weight.grad * weight).detach()
        expected += change.sum(0 if side == "input" else 1).square().double() / 2
    torch.testing.assert_close(found, expected)
    assert not any(p.requires_grad for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_batchnorm_scales_of_what_is_summed_are_summed() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
            self.p, self.q = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
            self.c = nn.Conv2d(4, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.p(self.a(x)) + self.q(self.b(x)))

    model = Sum().eval()
    model.p.weight.data = torch.tensor([1.0, -2.0, 0.1, 4.0])
    model.q.weight.data = torch.tensor([1.0, 0.5, 0.1, -4.0])
    found = upscale.select(model, torch.zeros(1, 3, 4, 4), amount=0.5, importance="bn")
    assert found.kept["c"] == (1, 3)


def test_random_scores_come_from_the_generator_given() -> None:
    model = nn.Sequential(nn.Linear(3, 40), nn.Linear(40, 2))
    x = torch.zeros(1, 3)

    def draw(seed: int) -> object:
        criterion = Random(torch.Generator().manual_seed(seed))
        return upscale.select(model, x, amount=0.5, importance=criterion).kept["1"]

    assert draw(0) == draw(0) != draw(1)


def test_a_function_of_weight_and_context_is_a_criterion() -> None:
    seen = []

    def last_first(weight: Tensor, context: Context) -> Tensor:
        seen.append((context.layer, context.side, tuple(weight.shape)))
        return -torch.arange(weight.shape[1])

    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 6, 2))
    found = upscale.select(model, torch.zeros(1, 3, 4, 4), amount=0.5, importance=last_first)
    assert found.kept["1"] == (0, 1)
    assert seen == [("1", "input", (6, 4, 2, 2))]


BAD = {
    "the wrong shape": (lambda w, c: w.sum(), {}, "it must be a tensor of 8 scores"),
    "no tensor": (lambda w, c: [1.0] * 8, {}, "gave list for 1"),
    "a score that is no number": (
        lambda w, c: torch.full((8,), torch.nan),
        {},
        "scores for 1 that are no numbers",
    ),
    "hrank without data": ("hrank", {}, "importance 'hrank' needs data"),
    "hrank with no batch": ("hrank", {"data": []}, "data holds no batch"),
    "taylor without data": ("taylor", {}, "importance 'taylor' needs data"),
    "taylor without a loss": ("taylor", {"data": [torch.zeros(2, 4)]}, "pass loss="),
    "batches of something else": ("activation", {"data": [3]}, "a batch of data is a int"),
    "no batchnorm": ("bn", {}, "needs layers next to a BatchNorm"),
}


@pytest.mark.parametrize("mistake", BAD)
def test_a_criterion_that_cannot_score_says_so(mistake: str) -> None:
    importance, given, message = BAD[mistake]
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    with pytest.raises(upscale.SelectionError, match=message):
        upscale.select(model, torch.zeros(1, 4), amount=0.5, importance=importance, **given)
