"""A model is traced on parameters that are only lent: what touches them gets its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from upscale.capture import Example, capture
from upscale.capture.captured import place_of
from upscale.capture.symbolic_trace import trace_symbolically, twin_of
from upscale.errors import CaptureError

X = Example.of(torch.ones(1, 3))


class Net(nn.Module):
    """A linear layer, and what else its code does with its weight as the module holds it."""

    def __init__(self, act: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self._act = act

    def forward(self, x: Tensor) -> Tensor:
        found = self._act(self.linear._parameters["weight"])
        return self.linear(x) * found if isinstance(found, float) else self.linear(x)


def test_only_parameters_that_train_are_lent() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    _, lent = twin_of(model, lend=True)
    own = dict(model.state_dict(keep_vars=True))
    shared = {name for name, tensor in lent.items() if place_of(tensor) == place_of(own[name])}
    assert shared == {"0.weight", "1.weight", "1.bias"}


@pytest.mark.parametrize(
    "read",
    [
        lambda weight: weight.detach().sum().item(),
        lambda weight: sum(map(sum, weight.tolist())),
        lambda weight: float(weight.detach().numpy().sum()),
        lambda weight: float(weight.data.sum()),
    ],
)
def test_code_that_reads_a_weight_while_it_is_traced_reads_its_numbers(read: Any) -> None:
    model = Net(read).eval()
    graph = trace_symbolically(model, X).graph
    scaled = next(node for node in graph.nodes if node.name == "mul")
    assert scaled.args[1] == pytest.approx(float(model.linear.weight.detach().sum()))


def test_code_that_catches_what_touching_raises_reads_its_numbers_all_the_same() -> None:
    def careful(weight: Tensor) -> float:
        try:
            return float(weight.detach().sum())
        except Exception:
            return 0.0

    model = Net(careful).eval()
    graph = trace_symbolically(model, X).graph
    scaled = next(node for node in graph.nodes if node.name == "mul")
    assert scaled.args[1] == pytest.approx(float(model.linear.weight.detach().sum()))


@pytest.mark.parametrize(
    "write",
    [
        lambda weight: weight.data.add_(1),
        lambda weight: weight.detach().zero_(),
        lambda weight: weight.detach().numpy().fill(0),
        lambda weight: weight.data.numpy().fill(0),
    ],
)
def test_a_write_to_a_weight_is_refused_and_the_model_keeps_its_own(write: Any) -> None:
    model = Net(write).eval()
    before = model.linear.weight.detach().clone()
    with pytest.raises(CaptureError):
        trace_symbolically(model, X)
    assert torch.equal(model.linear.weight, before)


def test_code_that_holds_a_parameter_of_its_own_is_traced_as_ever() -> None:
    held: list[Tensor] = []
    model = Net(lambda _: float(held[0].detach().sum())).eval()
    held.append(model.linear.weight)
    assert trace_symbolically(model, X).way == "symbolic"


def test_a_capture_makes_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    def bar(*args: object, **kwargs: object) -> None:
        raise AssertionError("a bar starts a thread, beside which the collector is not paused")

    monkeypatch.setattr(fx.interpreter, "tqdm", bar)
    assert capture(nn.Sequential(nn.Linear(3, 2), nn.ReLU()), X).values
