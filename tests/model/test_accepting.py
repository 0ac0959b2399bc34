"""Models that cannot be pruned as they are: every verb says so, and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.exactly import exported_exactly
from trials.lively import calm
from trials.nets import image
from upscale import CaptureError, Selection
from upscale.cli import main

SELECTION = Selection(kept={"2": [0, 1]})
VERBS: dict[str, Callable[[Any, Any], object]] = {
    "select": lambda model, x: upscale.select(model, x, amount=0.5),
    "mask": lambda model, x: upscale.mask(model, SELECTION),
    "plan": lambda model, x: upscale.plan(model, x, SELECTION),
    "zeroed": lambda model, x: upscale.plan(model, x),
    "export": lambda model, x: upscale.export(model, upscale.plan(plain(), numbers(), SELECTION)),
    "prune": lambda model, x: upscale.prune(model, x, amount=0.5),
    "survey": lambda model, x: upscale.survey(model, x),
    "recalibrate": lambda model, x: upscale.recalibrate(model, [x]),
}


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


def numbers() -> Tensor:
    return torch.randn(2, 4)


def quietly(make: Callable[[], Any]) -> Any:
    """What torch makes, without what it says of its own future."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


class Turning(Tensor):
    """A kind of tensor of its own, as quantising libraries have."""


class Marked(nn.Parameter):
    """A parameter that computes as any."""


def with_weight(weight: Tensor) -> nn.Module:
    model = plain()
    model[2].weight = nn.Parameter(weight)
    return model


def weight() -> Tensor:
    return torch.randn(3, 6)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "quantised": (
        lambda: torch.ao.quantization.quantize_dynamic(plain(), {nn.Linear}),
        "0, a Linear, is quantised.*prune the model it was quantised from",
    ),
    "scripted": (lambda: torch.jit.script(plain()), "TorchScript.*pass the module it was"),
    "traced": (lambda: torch.jit.trace(plain(), numbers()), "TorchScript.*pass the module it was"),
    "a part scripted": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), torch.jit.script(nn.Linear(6, 3))),
        "2, a RecursiveScriptModule, is TorchScript",
    ),
    "exported": (
        lambda: torch.export.export(plain(), (numbers(),)).module(),
        "pass the module that was exported",
    ),
    "a program": (
        lambda: torch.export.export(plain(), (numbers(),)),
        "pass the module that the program was exported from",
    ),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.Linear(6, 3)),
        "0.weight has no shape yet.*call the model once",
    ),
    "sparse": (lambda: with_weight(weight().to_sparse()), "2.weight is stored as sparse_coo"),
    "sparse rows": (lambda: with_weight(weight().to_sparse_csr()), "sparse_csr.*to_dense"),
    "complex": (
        lambda: with_weight(torch.randn(3, 6, dtype=torch.complex64)),
        "2.weight holds numbers of type complex64",
    ),
    "whole numbers": (
        lambda: whole_numbers(),
        "2.weight holds numbers of type int8.*quantised",
    ),
    "a kind of tensor": (
        lambda: with_weight(weight().as_subclass(Turning)),
        "2.weight is a Turning.*plain weights",
    ),
    "a class": (lambda: nn.ReLU, "ReLU is a class, pass an instance"),
    "nothing": (lambda: None, "expected a torch.nn.Module, not NoneType"),
}


def whole_numbers() -> nn.Module:
    model = plain()
    model[2].weight = nn.Parameter(torch.ones(3, 6, dtype=torch.int8), requires_grad=False)
    return model


@pytest.mark.parametrize("kind", REFUSED)
def test_every_verb_refuses_what_it_cannot_prune_and_says_what_to_do(kind: str) -> None:
    make, said = REFUSED[kind]
    model = quietly(make)
    for verb in VERBS.values():
        with pytest.raises(CaptureError, match=said):
            verb(model, numbers())


def test_every_verb_but_a_survey_refuses_a_model_without_numbers() -> None:
    model, x = plain().to("meta"), numbers().to("meta")
    for name, verb in VERBS.items():
        if name != "survey":
            with pytest.raises(CaptureError, match=r"0\.weight is on the meta device.*load the"):
                verb(model, x)
    assert upscale.survey(model, x).layers == upscale.survey(plain(), numbers()).layers


def compiled_in_place() -> nn.Module:
    model = plain()
    model.compile()
    return model


def marked() -> nn.Module:
    model = plain()
    model[2].weight = Marked(weight())
    return model


TAKEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a graph": (lambda: torch.fx.symbolic_trace(plain()), "2"),
    "compiled": (lambda: torch.compile(plain(), backend="eager"), "_orig_mod.2"),
    "compiled in place": (compiled_in_place, "2"),
    "in parallel": (lambda: nn.DataParallel(plain()), "module.2"),
    "a parameter's own class": (marked, "2"),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_wrapped_models_are_taken_by_the_names_they_have(kind: str) -> None:
    make, name = TAKEN[kind]
    model = quietly(make).double().eval()
    selection = Selection(kept={name: [1, 4]})
    exported, _ = exported_exactly(model, selection, lambda *_: numbers().double())
    assert exported.get_submodule(name).weight.shape == (3, 2)
    assert upscale.survey(model, numbers().double()).layers


class Rotated(nn.Module):
    """Two convolutions with a complex factor between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)
        self.factor = nn.Parameter(torch.randn(8, 1, 1, dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second((self.first(x).sigmoid() * self.factor * (0.5 + 2j)).real)
        return made


@pytest.mark.parametrize("side", ["input", "output"])
def test_complex_numbers_between_layers_are_no_reason_to_refuse(side: str) -> None:
    model = calm(Rotated()).double()
    layer = "second" if side == "input" else "first"
    exported_exactly(model, Selection(kept={layer: [0, 3, 6]}, side=side), image)


def test_recalibrate_says_which_batches_a_model_does_not_take() -> None:
    with pytest.raises(upscale.ExampleError, match="Sequential fails on a batch of the data"):
        upscale.recalibrate(plain(), [torch.zeros(2, 5)])


def scripted() -> nn.Module:
    return quietly(lambda: torch.jit.script(plain()))  # type: ignore[no-any-return]


def test_the_command_line_refuses_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    source = f"{__name__}:scripted"
    assert main(["prune", source, "--shape", "2,4", "--amount", "0.5", "--out", "none"]) != 0
    assert "TorchScript" in capsys.readouterr().err
