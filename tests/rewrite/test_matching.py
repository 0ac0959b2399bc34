"""A plan fits the model it was made for, as it was then, and no other."""

from __future__ import annotations

import copy
import math
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from upscale.capture import Captured, Example, capture, configuration
from upscale.rewrite import matching
from upscale.verify import compare

KEPT = upscale.Selection(kept={"b": [0, 2, 5]})
SLOPE = 0.1
SETTINGS = types.ModuleType("settings")
SETTINGS.slope = 0.1  # type: ignore[attr-defined]


def image() -> Tensor:
    return torch.randn(1, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def sloped(x: Tensor) -> Tensor:
    return F.leaky_relu(x, SLOPE)


class Net(nn.Module):
    """A network whose activation may come from anywhere."""

    slope = 0.1

    def __init__(self, act: Callable[[Tensor], Tensor] = F.relu, *, scale: float = 2.0) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3)
        self.b = nn.Conv2d(8, 4, 1)
        self.act = act
        self.scale = scale
        self.options = {"slopes": [0.1]}
        self.config = SimpleNamespace(slope=0.1)
        self.offset = torch.tensor([0.5])
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.a(x)) * self.scale + self.offset
        x = F.leaky_relu(x, self.slope) + F.leaky_relu(x, self.options["slopes"][0])
        x = F.leaky_relu(x, self.config.slope) + F.leaky_relu(x, SETTINGS.slope)
        return self.b(self.helped(x))  # type: ignore[no-any-return]

    def helped(self, x: Tensor) -> Tensor:
        return sloped(x)


def planned(model: nn.Module) -> upscale.Plan:
    return upscale.plan(model, image(), KEPT)


def assert_exports(model: nn.Module, plan: upscale.Plan, *given: Any) -> None:
    exported = upscale.export(model, plan, *given)
    masked = upscale.mask(model, KEPT)
    example = Example.of(image().to(next(model.parameters()).dtype))
    assert compare(exported, masked, example).relative_error <= 1e-10


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Captured]:
    """What exports capture again."""
    found: list[Captured] = []

    def counting(*given: Any, **options: Any) -> Captured:
        found.append(capture(*given, **options))
        return found[-1]

    monkeypatch.setattr(matching, "capture", counting)
    return found


def test_a_plan_in_memory_does_not_fit_a_model_that_computes_something_else() -> None:
    plan = planned(Net(F.relu))
    with pytest.raises(upscale.PlanError, match=r"another model: there relu, here sigmoid, at "):
        upscale.export(Net(torch.sigmoid), plan)


def test_a_slope_counts_in_memory_in_json_and_in_a_file(tmp_path: Path) -> None:
    one, other = Net(nn.LeakyReLU(0.1)), Net(nn.LeakyReLU(0.2))
    plan = planned(one)
    with pytest.raises(upscale.PlanError, match=r"negative_slope=0\.2"):
        upscale.export(other, plan)
    with pytest.raises(upscale.PlanError, match="other operations, constants or parameters"):
        upscale.export(other, upscale.Plan.from_json(plan.to_json()), image())
    upscale.save(upscale.export(one, plan), tmp_path / "model.safetensors")
    with pytest.raises(upscale.StoreError, match="another model"):
        upscale.load(tmp_path / "model.safetensors", other)
    upscale.load(tmp_path / "model.safetensors", Net(nn.LeakyReLU(0.1)))


def write_global(model: Net, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(f"{__name__}.SLOPE", 0.3)


def write_module(model: Net, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SETTINGS, "slope", 0.3)


def write_class(model: Net, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Net, "slope", 0.3)


def write_helper(model: Net, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Net, "helped", lambda self, x: x.sigmoid())


def write_code(model: Net, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sloped, "__code__", (lambda x: F.leaky_relu(x, 0.3)).__code__)


def write_forward(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.forward = lambda x: model.b(model.a(x).tanh())  # type: ignore[method-assign]


def write_method(model: Net, patch: pytest.MonkeyPatch) -> None:
    def forward(self: Net, x: Tensor) -> Any:
        return self.b(self.a(x).tanh())

    model.forward = types.MethodType(forward, model)  # type: ignore[method-assign]


def write_attribute(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.scale = 3.0


def write_container(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.options["slopes"][0] = 0.3


def write_object(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.config.slope = 0.3


def write_constant(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.offset += 1


def write_layer(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.a.stride = (2, 2)


def write_hook(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.a.register_forward_hook(lambda module, given, made: made * 2)


def write_function(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.act = partial(F.leaky_relu, negative_slope=0.3)


def write_mode(model: Net, patch: pytest.MonkeyPatch) -> None:
    model.train()


CHANGES = (
    *(
        write_global,
        write_module,
        write_class,
        write_helper,
        write_code,
        write_forward,
        write_method,
    ),
    *(write_attribute, write_container, write_object, write_constant, write_layer, write_hook),
    *(write_function, write_mode),
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_does_not_fit_its_own_model_once_it_computes_something_else(
    change: Callable[[Net, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    plan = planned(model)
    assert_exports(model, plan)
    change(model, monkeypatch)
    with pytest.raises(upscale.PlanError, match="another model"):
        upscale.export(model, plan)


def test_a_model_that_is_as_it_was_is_not_captured_again(captures: list[Captured]) -> None:
    model = Net()
    plan = planned(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert_exports(model, plan)
    assert_exports(model.double(), plan)
    upscale.prune(model.float(), image(), amount=0.5)
    assert captures == []


def test_a_twin_and_a_copy_with_other_weights_fit(captures: list[Captured]) -> None:
    plan = planned(Net())
    assert_exports(Net(), plan)  # its constant is a tensor of its own: it is looked at
    assert_exports(copy.deepcopy(Net()).double(), plan)
    assert len(captures) == 2


def test_what_changes_nothing_that_is_computed_fits(captures: list[Captured]) -> None:
    model = Net()
    plan = planned(model)
    model.note = "trained twice"  # type: ignore[assignment]
    assert_exports(model, plan)
    assert len(captures) == 1


def test_what_cannot_be_looked_into_is_captured_again(captures: list[Captured]) -> None:
    model = Net()
    model.sealed = iter(())  # type: ignore[assignment]
    plan = planned(model)
    assert configuration(model).parts is None
    assert_exports(model, plan)
    assert len(captures) == 1


def test_a_masked_model_fits_the_plan_of_the_plain_one(captures: list[Captured]) -> None:
    model = Net()
    model.offset = None  # type: ignore[assignment]
    model.forward = types.MethodType(  # type: ignore[method-assign]
        lambda self, x: self.b(F.relu(self.a(x))), model
    )
    plan = planned(model)
    assert_exports(upscale.mask(model, KEPT), plan)


def test_a_model_traced_into_other_nodes_is_told_to_plan_again() -> None:
    one, other = Net(F.relu), Net(lambda x: x.relu().contiguous())
    plan = planned(one)
    with pytest.raises(upscale.PlanError, match=r"traced into other nodes here.*plan again"):
        upscale.export(other, plan)
    with pytest.raises(upscale.PlanError, match=r"traced into other nodes here.*plan again"):
        upscale.export(other, upscale.Plan.from_json(plan.to_json()), image())


@pytest.mark.parametrize("old", ["", "0" * 64, "1:" + "0" * 64, "2:" + "0" * 64])
def test_a_fingerprint_of_another_format_is_refused_as_that(old: str) -> None:
    plan = replace(planned(Net()), made_for=old)
    with pytest.raises(upscale.PlanError, match="another version of upscale; plan again"):
        upscale.export(Net(), plan, image())


def test_a_model_that_cannot_take_the_plans_example_is_another() -> None:
    class Failing(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise math.nan  # type: ignore[misc]

    with pytest.raises(upscale.PlanError, match="cannot be captured as that one was"):
        upscale.export(Failing(), planned(Net()))
