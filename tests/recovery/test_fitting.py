"""A fit is the least-squares answer, and columns go in the order of what they cost."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from torch import Tensor

from upscale.recovery.elimination import eliminate
from upscale.recovery.fitting import fit
from upscale.recovery.moments import Moments

CPU = torch.device("cpu")


def moments(rows: Tensor, targets: Tensor) -> Moments:
    found = Moments.none(len(rows), rows.shape[2], targets.shape[2], CPU)
    found.add(rows, targets)
    return found


def drawn(
    groups: int = 2, rows: int = 400, columns: int = 6, outputs: int = 3
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(groups, rows, columns, dtype=torch.float64)
    weight = torch.randn(groups, columns, outputs, dtype=torch.float64)
    return x, x @ weight + 0.1 * torch.randn(groups, rows, outputs, dtype=torch.float64) + 2


@pytest.mark.parametrize("shifts", [True, False])
def test_a_fit_to_much_data_is_the_least_squares_answer(shifts: bool) -> None:
    x, targets = drawn()
    old = torch.zeros(2, 6, 3, dtype=torch.float64)
    shift = torch.zeros(2, 3, dtype=torch.float64)
    half = x.shape[1] // 2
    parts = moments(x[:, :half], targets[:, :half]), moments(x[:, half:], targets[:, half:])
    found = fit(*parts, old, shift, shifts=shifts)
    ones = torch.ones(2, x.shape[1], 1, dtype=torch.float64)
    best = torch.linalg.lstsq(torch.cat([x, ones], dim=2) if shifts else x, targets).solution
    least = found.whole.error(best[:, :6], best[:, 6] if shifts else shift).sum()
    assert found.pays
    assert least <= found.whole.error(found.weight, found.shift).sum() <= 1.001 * least


def test_the_error_of_sums_is_that_of_rows() -> None:
    x, targets = drawn()
    weight, shift = (
        torch.randn(2, 6, 3, dtype=torch.float64),
        torch.randn(2, 3, dtype=torch.float64),
    )
    errors = (x @ weight + shift[:, None] - targets).square().sum(dim=1)
    assert torch.allclose(moments(x, targets).error(weight, shift), errors)
    mean, variance = moments(x, targets).spread(weight)
    assert torch.allclose(mean, (x @ weight).mean(dim=1))
    assert torch.allclose(variance, (x @ weight).var(dim=1, unbiased=False))


def test_what_the_data_says_nothing_about_stays() -> None:
    x, targets = drawn()
    x[:, :, 4] = 0
    old = torch.randn(2, 6, 3, dtype=torch.float64)
    nothing = moments(x[:, :0], targets[:, :0])
    found = fit(moments(x, targets), nothing, old, torch.zeros(2, 3).double(), shifts=True)
    assert torch.allclose(found.weight[:, 4], old[:, 4])


def test_a_fit_of_noise_does_not_pay() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 12, 10, dtype=torch.float64)
    other = torch.randn(1, 500, 10, dtype=torch.float64)
    old = torch.randn(1, 10, 2, dtype=torch.float64)
    noise = 5 * torch.randn(1, 12, 2, dtype=torch.float64)
    held = moments(other, other @ old)
    found = fit(moments(x, x @ old + noise), held, old, torch.zeros(1, 2).double(), shifts=False)
    assert not found.pays


def test_the_first_column_to_go_is_the_one_that_others_make_up_for_best() -> None:
    x, _ = drawn()
    x[:, :, 3] = x[:, :, 0] - x[:, :, 1] + 1e-3 * x[:, :, 3]
    weight = torch.randn(2, 6, 3, dtype=torch.float64)
    targets = x @ weight
    gram = x.transpose(1, 2) @ x

    def remaining(kept: tuple[int, ...]) -> float:
        own = x[:, :, list(kept)]
        return float((own @ torch.linalg.lstsq(own, targets).solution - targets).square().sum())

    curve = eliminate(gram.inverse(), weight, 6, 1.0)
    best = min(combinations(range(6), 5), key=remaining)
    assert curve.kept(5) == best
    for count in range(1, 6):
        assert curve.error(count) == pytest.approx(remaining(curve.kept(count)), rel=1e-6)
    assert list(curve.errors) == sorted(curve.errors)


def test_columns_of_several_taps_go_whole_and_groups_share_them() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 300, 4 * 3, dtype=torch.float64)
    weight = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    weight[:, 2] *= 1e-3
    curve = eliminate((x.transpose(1, 2) @ x).inverse(), weight.reshape(2, 12, 5), 4, 1.0)
    assert curve.order[0] == 2
    assert sorted(curve.order) == [0, 1, 2, 3]
