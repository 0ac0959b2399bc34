"""Answers before and after are counted over all samples, and only where there are answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from upscale.lab.answers import compare, count_classes


class Shifted(nn.Module):
    """Gives what it is given, and one class further on where the first number is large."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x[:, :1] > 5, x.roll(1, dims=1), x)


ROWS = torch.tensor([[9.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 4, 0], [7, 0, 0]])


def test_answers_are_counted_over_batches_of_any_size() -> None:
    labels = torch.tensor([0, 1, 0, 1, 1])
    batches = [(ROWS[:3], labels[:3]), (ROWS[3:], labels[3:])]
    found = compare(nn.Identity(), Shifted(), batches)
    assert found is not None
    assert (found.samples, found.accuracy_before, found.accuracy_after) == (5, 0.6, 0.6)
    assert found.agreement == 0.6
    assert found.relative_error == pytest.approx(((2 * 81 + 2 * 49) / (81 + 49 + 18)) ** 0.5)
    assert "accuracy 60.0% before, 60.0% after" in str(found)


def test_without_labels_or_classes_no_accuracy_is_told() -> None:
    unlabelled = compare(nn.Identity(), Shifted(), [ROWS])
    assert unlabelled is not None
    assert (unlabelled.accuracy_before, unlabelled.agreement) == (None, 0.6)
    maps = compare(nn.Identity(), nn.ReLU(), [torch.full((4, 3, 2, 2), -1.0)])
    assert maps is not None
    assert (maps.agreement, maps.relative_error) == (None, 1.0)
    assert str(maps) == "On 4 samples that nothing was fitted to: outputs differ by 100.0%."
    assert compare(nn.Identity(), nn.Identity(), []) is None


def test_modes_stay_and_classes_are_the_columns_of_the_output() -> None:
    model = nn.Sequential(nn.Linear(3, 7), nn.Dropout()).train()
    assert count_classes(model, torch.zeros(1, 3)) == 7
    assert model.training
    assert count_classes(nn.Conv2d(1, 2, 1), torch.zeros(1, 1, 2, 2)) == 0
