"""Bad input gets an error of ours that names what is wrong; the caller's model is never changed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.nets import Functional, Plain, Residual, SharedWeight, conv
from upscale import Selection
from upscale.capture import Example
from upscale.verify import verify


def image(channels: int = 3) -> Tensor:
    return torch.randn(1, channels, 8, 8)


def photograph(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that a caller could see change."""
    seen: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers"):
                for own, tensor in value.items():
                    seen[f"{path}.{own}"] = None if tensor is None else _photograph_tensor(tensor)
            elif name == "_modules":
                seen[f"{path}.{name}"] = {own: id(child) for own, child in value.items()}
            else:
                seen[f"{path}.{name}"] = dict(value) if isinstance(value, dict) else value
    return seen


def _photograph_tensor(tensor: Tensor) -> tuple[Any, ...]:
    bits = b"" if tensor.is_meta else tensor.detach().numpy().tobytes()
    where = (id(tensor), tensor.data_ptr(), tensor.stride(), tensor.device, tensor.dtype)
    return (*where, tensor.requires_grad, tensor.grad is None, bits)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = conv(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return x if x.sum() > 0 else -x


class OneScaleLess(nn.Module):
    """`Functional` without the parameters it uses by name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.used = conv(3, 8), conv(8, 6)


class Unnormed(nn.Module):
    """`Plain` with nothing where it has a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = conv(3, 12), nn.Identity(), conv(12, 5)


def hooked() -> nn.Module:
    model = Plain()
    model.register_forward_hook(lambda module, inputs, output: output * 2)
    return model


def plan_with(**kept: Any) -> Callable[[nn.Module], Any]:
    return lambda model: upscale.plan(model, image(), Selection(kept=kept))


def mask_with(**kept: Any) -> Callable[[nn.Module], Any]:
    return lambda model: upscale.mask(model, Selection(kept=kept))


def plan_of(other: Callable[[], nn.Module]) -> upscale.Plan:
    return upscale.plan(other(), image())


# What is wrong: the model, the call, and what its error's message must say.
MISTAKES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Any], str]] = {
    "an unknown layer": (Residual, plan_with(block=[0]), "'block'"),
    "a layer's last name alone": (
        lambda: nn.Sequential(nn.Sequential(conv(3, 4))),
        lambda model: upscale.plan(model, image(), Selection(kept={"0.1.0": [0]})),
        r"'0\.1\.0'; did you mean 0\.0",
    ),
    "a layer without columns": (Plain, plan_with(n=[0]), "no convolution or linear.*'n'"),
    "an unknown layer in mask": (Plain, mask_with(block=[0]), "'block'"),
    "an index out of range": (Plain, plan_with(b=[0, 12]), r"b has 12 input.* 12 .*0\.\.11"),
    "an index out of range in mask": (Plain, mask_with(b=[12]), r"b has 12 input.* 12 .*0\.\.11"),
    "a negative index": (Plain, plan_with(b=[0, -1]), "b: kept index -1 is negative"),
    "an index twice": (Plain, plan_with(b=[3, 1, 3]), "b: kept index 3 appears twice; list it on"),
    "no list": (Plain, plan_with(b=None), "b: kept is None; it must be a list of integers"),
    "a number for a list": (Plain, plan_with(b=3), "b: kept is 3; it must be a list of integers"),
    "a word among indices": (Plain, plan_with(b=["one"]), "b: kept is .* list of integers"),
    "a fraction among indices": (Plain, plan_with(b=[0, 1.5]), "b: kept is .* list of integers"),
    "digits in a string": (Plain, plan_with(b="12"), "b: kept is .* list of integers"),
    "a boolean mask": (Plain, plan_with(b=[True, False]), "b: kept is .* list of integers"),
    "a tensor of fractions": (Plain, plan_with(b=torch.tensor([0.5])), "b: kept is"),
    "an unknown side": (
        Plain,
        lambda model: Selection(kept={"b": [0]}, side="inputs"),
        "side is 'inputs'; it must be 'input' or 'output'",
    ),
    "kept as a list": (Plain, lambda model: Selection(kept=["b"]), "kept maps layer names"),
    "a dict for a selection": (
        Plain,
        lambda model: upscale.plan(model, image(), {"b": [0]}),
        "Selection",
    ),
    "a dict for a selection in mask": (
        Plain,
        lambda model: upscale.mask(model, {"b": [0]}),
        "Selection",
    ),
    "the output side of a model that is a layer": (
        lambda: nn.Conv2d(3, 4, 3),
        lambda model: upscale.plan(model, image(), Selection(kept={"": [0]}, side="output")),
        "itself the layer whose outputs are pruned; put it into an nn.Sequential",
    ),
    "layers that share a weight and disagree": (
        SharedWeight,
        plan_with(a=[0, 1], b=[0, 2]),
        "a and b share one weight .*; give both the same list",
    ),
    "layers that share a weight and disagree in mask": (
        SharedWeight,
        mask_with(a=[0, 1], b=[0, 2]),
        "a and b share one weight .*; give both the same list",
    ),
    "an example on another device": (
        Plain,
        lambda model: upscale.plan(model, image().to("meta"), Selection(kept={"b": [0]})),
        "model is on cpu and the example on meta; move both to one device",
    ),
    "a model on another device": (
        lambda: Plain().to("meta"),
        lambda model: upscale.plan(model, image(), Selection(kept={"b": [0]})),
        "model is on meta and the example on cpu; move both to one device",
    ),
    "a model on another device, without selection": (
        lambda: Plain().to("meta"),
        lambda model: upscale.plan(model, image()),
        "meta",
    ),
    "a model on another device in select": (
        lambda: Plain().to("meta"),
        lambda model: upscale.select(model, image(), amount=0.5),
        "model is on meta and the example on cpu; move both to one device",
    ),
    "an example with too many channels": (
        Plain,
        lambda model: upscale.plan(model, image(4)),
        r"example of shape \(1, 4, 8, 8\) at a\b.*3 channels",
    ),
    "an example of too few axes": (
        Plain,
        lambda model: upscale.prune(model, torch.randn(8), amount=0.5),
        r"example of shape \(8,\) at a\b",
    ),
    "an example of another kind of number": (
        Plain,
        lambda model: upscale.plan(model, image().double()),
        r"example of shape \(1, 3, 8, 8\) at a\b.*double",
    ),
    "an example of too many inputs": (
        Plain,
        lambda model: upscale.plan(model, (image(), image())),
        "Plain.forward does not take the example: too many",
    ),
    "an example with an unknown keyword": (
        Plain,
        lambda model: upscale.plan(model, {"picture": image()}),
        "Plain.forward does not take the example: .*'x'",
    ),
    "no example": (Plain, lambda model: upscale.plan(model, None), "holds no tensor; pass what"),
    "an empty example": (Plain, lambda model: upscale.plan(model, []), "holds no tensor; pass wh"),
    "an example of numbers": (
        Plain,
        lambda model: upscale.prune(model, [[0.5]], amount=0.5),
        "holds no tensor; pass what",
    ),
    "a branch on data": (
        Branching,
        lambda model: upscale.plan(model, image()),
        "Branching cannot be .*control flow.*torch.fx.wrap",
    ),
    "hooks on the model itself": (
        hooked,
        lambda model: upscale.plan(model, image()),
        "Plain itself has forward hooks.*; remove them",
    ),
    "a function for a model": (
        Plain,
        lambda model: upscale.prune(F.relu, image(), amount=0.5),
        "expected a torch.nn.Module, not",
    ),
    "an unknown order": (
        Plain,
        lambda model: upscale.plan(model, image(), order="best"),
        "order is 'best'; it must be one of optimal, mrap, none",
    ),
    "an unknown order in prune": (
        Plain,
        lambda model: upscale.prune(model, image(), amount=0.5, order="best"),
        "order is 'best'; it must be one of",
    ),
    "an unknown importance": (
        Plain,
        lambda model: upscale.select(model, image(), amount=0.5, importance="luck"),
        "importance is 'luck'; it must be one of",
    ),
    "an importance that is no name": (
        Plain,
        lambda model: upscale.select(model, image(), amount=0.5, importance=["l1"]),
        "importance",
    ),
    "an unknown scope": (
        Plain,
        lambda model: upscale.select(model, image(), amount=0.5, scope="worldwide"),
        "scope is 'worldwide'",
    ),
    "an unknown side in select": (
        Plain,
        lambda model: upscale.select(model, image(), amount=0.5, side="inputs"),
        "side is 'inputs'",
    ),
    "an unknown constraint": (
        Plain,
        lambda model: upscale.select(model, image(), amount=0.5, constraint="tight"),
        "constraint is 'tight'",
    ),
    "an amount of everything": (
        Plain,
        lambda model: upscale.prune(model, image(), amount=1.0),
        "amount is 1.0; it must be a share from 0",
    ),
    "an amount in percent": (
        Plain,
        lambda model: upscale.select(model, image(), amount=30),
        "amount is 30; it must be a share from 0",
    ),
    "a negative amount": (
        Plain,
        lambda model: upscale.prune(model, image(), amount=-0.1),
        "amount is -0.1; it must be a share from 0",
    ),
    "an amount that is no number": (
        Plain,
        lambda model: upscale.prune(model, image(), amount="0.3"),
        "amount is '?0.3'?; it must be a share from 0",
    ),
    "a plan of another architecture": (
        Residual,
        lambda model: upscale.export(model, plan_of(Plain)),
        r"made for another model.*\ba\b",
    ),
    "a plan of another width": (
        lambda: nn.Sequential(conv(3, 4), conv(4, 2)),
        lambda model: upscale.export(model, plan_of(lambda: nn.Sequential(conv(3, 8), conv(8, 2)))),
        r"another model: there 0\.weight is \(8, 3, 3, 3\), here \(4, 3, 3, 3\)",
    ),
    "a plan that uses parameters the model lacks": (
        OneScaleLess,
        lambda model: upscale.export(model, plan_of(Functional)),
        "made for another model.*(scale|kernel)",
    ),
    "a plan with a norm the model lacks": (
        Unnormed,
        lambda model: upscale.export(model, plan_of(Plain)),
        "made for another model.* n",
    ),
    "no plan": (Plain, lambda model: upscale.export(model, None), "plan"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_leaves_the_model_unchanged(mistake: str) -> None:
    make, call, message = MISTAKES[mistake]
    model = make()
    before = photograph(model)
    with pytest.raises(upscale.UpscaleError) as raised:
        call(model)
    assert re.search(message, str(raised.value), re.DOTALL), str(raised.value)
    assert photograph(model) == before


KEPT = Selection(kept={"b": [0, 5]})
VERBS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "select": lambda model, x: upscale.select(model, x, amount=0.5),
    "mask": lambda model, x: upscale.mask(model, KEPT),
    "plan": lambda model, x: upscale.plan(model, x, KEPT),
    "plan from zeroed weights": lambda model, x: upscale.plan(model, x),
    "export": lambda model, x: upscale.export(model, upscale.plan(model, x, KEPT)),
    "prune": lambda model, x: upscale.prune(model, x, amount=0.5),
}

every_verb = pytest.mark.parametrize("verb", VERBS)


@every_verb
@pytest.mark.parametrize("training", [False, True])
def test_a_verb_leaves_the_model_unchanged(verb: str, training: bool) -> None:
    model = Plain().train(training)
    model.a.weight.requires_grad_(False)
    model.b.eval()
    model.a.register_forward_hook(lambda layer, inputs, output: None)
    model.n.register_forward_pre_hook(lambda layer, inputs: None)
    model.note = {"of": "the caller"}
    before = photograph(model)
    VERBS[verb](model, image())
    assert photograph(model) == before


@every_verb
def test_a_verb_leaves_the_random_numbers_alone(verb: str) -> None:
    model, x = Plain(), image()
    before = torch.get_rng_state()
    VERBS[verb](model, x)
    assert torch.equal(torch.get_rng_state(), before)


class WritesIntoItsInput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


class WritesInALoop(Plain):
    """`torch.fx` cannot trace the loop; `torch.export` can."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(x.shape[1]):
            x.mul_(2)
        return super().forward(x)


@every_verb
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [WritesIntoItsInput, WritesInALoop])
def test_a_verb_leaves_the_example_unchanged(
    verb: str, dtype: torch.dtype, make: Callable[[], nn.Module]
) -> None:
    model, x = make().to(dtype), image().to(dtype)
    before = x.clone()
    VERBS[verb](model, x)
    assert torch.equal(x, before)


class Remembering(nn.Module):
    """Its forward counts its calls and remembers what it saw."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(3, 6), conv(6, 4)
        self.register_buffer("steps", torch.zeros(()))
        self.calls, self.last = 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.steps += 1
        self.last = F.relu(self.a(x))
        return self.b(self.last)


@every_verb
def test_a_verb_leaves_what_a_model_remembers_of_its_calls_unchanged(verb: str) -> None:
    model = Remembering()
    before = photograph(model)
    VERBS[verb](model, image())
    assert photograph(model) == before


def test_integers_of_other_libraries_are_indices_too() -> None:
    for kept in (torch.tensor([2, 0]), torch.tensor([2, 0]).numpy(), range(0, 3, 2), {2, 0}):
        assert Selection(kept={"b": kept}).kept["b"] == (0, 2)


def test_a_difference_above_rounding_is_an_error_that_says_how_large_it_is() -> None:
    model = Plain().eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.b.bias += 1e-6
    with pytest.raises(upscale.VerificationError, match=r"differs .* by \d\.\d\de-0[67]"):
        verify(other, model, Example.of(image()))
