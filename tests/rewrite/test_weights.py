"""Smaller layers: parameters cut, folded and zeroed as a plan says, each once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.rewrite.building import cutter
from upscale.rewrite.weights import Cutter


class Pair(nn.Module):
    """Two linear layers, told apart in every number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4).double(), nn.Linear(4, 2).double()


def made(cut: Cutter, path: str) -> nn.Module:
    return cut.module(path, node=path)


def numbers(tensor: Tensor) -> Tensor:
    return tensor.detach()


def test_a_cut_takes_rows_and_columns_in_the_order_given() -> None:
    model = Pair()
    cut = cutter(model, cuts={"last.weight": {0: [1, 0], 1: [3, 1]}, "last.bias": {0: [1, 0]}})
    last = made(cut, "last")
    assert torch.equal(numbers(last.weight), numbers(model.last.weight)[[1, 0]][:, [3, 1]])
    assert torch.equal(numbers(last.bias), numbers(model.last.bias)[[1, 0]])
    assert (last.in_features, last.out_features) == (2, 2)


def test_what_no_cut_names_is_copied_and_the_model_stays_as_it_was() -> None:
    model = Pair()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = made(cutter(model, cuts={"last.weight": {1: [0]}}), "first")
    assert torch.equal(first.weight, model.first.weight)
    with torch.no_grad():
        first.weight.zero_()
    assert all(torch.equal(before[name], own) for name, own in model.state_dict().items())


def test_a_column_read_beside_those_kept_has_weights_of_zero() -> None:
    model = Pair()
    last = made(
        cutter(model, cuts={"last.weight": {1: [0, 1, 2]}}, kept={"last.weight": [0, 2]}), "last"
    )
    expected = numbers(model.last.weight)[:, :3].clone()
    expected[:, 1] = 0
    assert torch.equal(numbers(last.weight), expected)


def test_a_zeroed_row_stays_as_a_row_of_zeros() -> None:
    model = Pair()
    zeroed = {"first.weight": {0: [1]}, "first.bias": {0: [1]}}
    first = made(cutter(model, zeroed=zeroed), "first")
    assert first.weight.shape == (4, 3)
    assert not first.weight[1].any()
    assert first.bias[1] == 0
    rest = [0, 2, 3]
    assert torch.equal(numbers(first.weight)[rest], numbers(model.first.weight)[rest])


def test_zeros_are_told_by_the_rows_before_the_cut() -> None:
    model = Pair()
    cut = cutter(model, cuts={"first.weight": {0: [3, 2]}}, zeroed={"first.weight": {0: [2]}})
    first = made(cut, "first")
    assert torch.equal(numbers(first.weight)[0], numbers(model.first.weight)[3])
    assert not first.weight[1].any()


def test_columns_that_meet_a_constant_fold_into_the_bias() -> None:
    model = Pair()
    cut = cutter(
        model,
        cuts={"last.weight": {1: [0, 2]}},
        kept={"last.weight": [0, 2]},
        folds={"last.weight": ({1: 0.5, 3: -2.0}, None)},
    )
    last = made(cut, "last")
    x = torch.randn(5, 4, dtype=torch.float64)
    x[:, 1], x[:, 3] = 0.5, -2.0
    torch.testing.assert_close(last(x[:, [0, 2]]), model.last(x), rtol=0, atol=1e-12)


def test_a_layer_without_a_bias_gains_one_that_trains() -> None:
    model = Pair()
    model.last.bias = None
    cut = cutter(model, cuts={"last.weight": {1: [0]}}, folds={"last.weight": ({1: 3.0}, None)})
    last = made(cut, "last")
    assert torch.allclose(last.bias, 3 * model.last.weight[:, 1])
    assert last.bias.requires_grad


def test_folded_into_a_column_that_one_stands_for_all() -> None:
    model = Pair()
    cut = cutter(
        model,
        cuts={"last.weight": {1: [0, 1, 2]}},
        kept={"last.weight": [0, 1, 2]},
        folds={"last.weight": ({1: 0.5, 3: -2.0}, 1)},
    )
    last = made(cut, "last")
    x = torch.randn(5, 4, dtype=torch.float64)
    x[:, 1], x[:, 3] = 0.5, -2.0
    torch.testing.assert_close(last(x[:, [0, 1, 2]]), model.last(x), rtol=0, atol=1e-12)
    assert torch.equal(last.bias, model.last.bias)


def test_a_parameter_that_two_modules_share_is_cut_once_and_stays_shared() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    cut = cutter(model, cuts={"0.weight": {0: [1, 2]}})
    assert made(cut, "0").weight is made(cut, "1").weight


@pytest.mark.parametrize("groups", [2, 4])
def test_a_grouped_convolution_says_what_its_parameters_are(groups: int) -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1, groups=8))
    rows = list(range(groups))
    conv = made(
        cutter(model, cuts={"0.weight": {0: rows}, "0.bias": {0: rows}}, groups={"0": groups}), "0"
    )
    assert (conv.in_channels, conv.out_channels, conv.groups) == (groups, groups, groups)
    assert conv(torch.randn(1, groups, 3, 3)).shape == (1, groups, 3, 3)


def test_a_channels_last_weight_stays_channels_last() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 3)).to(memory_format=torch.channels_last)
    weight = made(cutter(model, cuts={"0.weight": {1: [0, 5]}}), "0").weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_what_was_frozen_stays_frozen() -> None:
    model = Pair()
    model.first.weight.requires_grad_(False)
    first = made(cutter(model, cuts={"first.weight": {0: [0, 1]}}), "first")
    assert not first.weight.requires_grad
    assert first.bias.requires_grad
