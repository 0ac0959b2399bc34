"""A verb traces a model once, whatever it goes on to do with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import upscale
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS
from upscale.capture import capture_model


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[type[nn.Module]]:
    """The classes of models that are traced from here on, one entry each time."""
    traced: list[type[nn.Module]] = []

    trace = capture_model.trace_symbolically

    def count(model: nn.Module, *rest: Any) -> Any:
        traced.append(type(model))
        return trace(model, *rest)

    monkeypatch.setattr(capture_model, "trace_symbolically", count)
    return traced


def residual() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    make, example = NETS["Residual"]
    return calm(make()), example(1, 12)


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_plan_is_made_from_one_trace_and_exported_from_none(
    traces: list[type[nn.Module]], side: str
) -> None:
    model, example = residual()
    plan = upscale.plan(model, example, random_selection(model, 0.4, 0, side=side))
    assert len(traces) == 1
    upscale.export(model, plan)
    assert len(traces) == 1


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("amount", [0.3, upscale.Parameters(0.3, exported=True)])
def test_channels_are_selected_from_one_trace(
    traces: list[type[nn.Module]], side: str, amount: Any
) -> None:
    model, example = residual()
    upscale.select(model, example, amount=amount, side=side)
    assert len(traces) == 1


@pytest.mark.parametrize("side", ["input", "output"])
def test_a_model_is_pruned_from_one_trace(traces: list[type[nn.Module]], side: str) -> None:
    model, example = residual()
    upscale.prune(model, example, amount=0.3, side=side, verify=False)
    assert len(traces) == 1


def test_a_survey_is_made_from_one_trace(traces: list[type[nn.Module]]) -> None:
    upscale.survey(*residual())
    assert len(traces) == 1
