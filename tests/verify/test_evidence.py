"""Verification says what it tested, and when it could test nothing."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.nets import conv, image
from upscale.capture import Example
from upscale.cli import main
from upscale.verify import Verified, compare


class Branch(nn.Module):
    """A shortcut beside two layers, of which `through` says what becomes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv(3, 8), conv(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.through(self.last(self.first(x).relu()), x)

    def through(self, y: Tensor, x: Tensor) -> Tensor:
        return x + y


class NoNumbers(Branch):
    def through(self, y: Tensor, x: Tensor) -> Tensor:
        return y * float("nan")


class Unheard(Branch):
    """As a block is whose last scale begins at zero."""

    def through(self, y: Tensor, x: Tensor) -> Tensor:
        return x + 0 * y


class Argmax(Branch):
    def through(self, y: Tensor, x: Tensor) -> Tensor:
        return y.argmax(1)


class Rounded(Branch):
    """Its gradients are zero everywhere, and it responds all the same."""

    def through(self, y: Tensor, x: Tensor) -> Tensor:
        return (16 * y).round()


class WithoutGradients(Branch):
    def through(self, y: Tensor, x: Tensor) -> Tensor:
        return x + y.detach()


def pair(
    model: nn.Module, example: Any, kept: dict[str, Any] | None = None
) -> tuple[torch.fx.GraphModule, nn.Module]:
    """The export and the masked model."""
    selection = upscale.Selection(kept=kept or {"last": [0, 2, 3, 6]})
    exported = upscale.export(model, upscale.plan(model, example, selection))
    return exported, upscale.mask(model, selection)


def compared(model: nn.Module, example: Any, **options: Any) -> Verified:
    return compare(*pair(model.eval(), example, **options), Example.of(example))


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def test_a_result_says_what_was_tested() -> None:
    found = compared(made(Branch), image(1, 8))
    assert found.exact
    assert found.relative_error is not None
    assert found.precision == "float64"
    assert found.inputs == ("the example", "inputs drawn like it")
    assert (found.outputs, found.buffers, found.untested, found.because) == (1, 0, (), None)
    assert str(found).startswith("Verified: it computes what the masked model computes.\n")
    assert "Called with the example and inputs drawn like it, in float64: 1 output" in str(found)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (NoNumbers, "no output is finite on the example or on 3 drawn inputs"),
        (Unheard, "no output responds .* to the weights that pruning changed"),
    ],
)
def test_what_tells_nothing_is_not_tested(kind: type[nn.Module], why: str) -> None:
    found = compared(made(kind), image(1, 8))
    assert found.relative_error is None
    assert not found.exact
    assert str(found).startswith("Not tested: ")
    with pytest.warns(upscale.UnverifiedWarning, match=why):
        pruned = upscale.prune(made(kind), image(1, 8), amount=0.5)
    assert pruned.meta["verified"].relative_error is None


def test_a_layer_that_no_output_responds_to_is_named_beside_those_tested() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heard, self.unheard = Branch(), Unheard()

        def forward(self, x: Tensor) -> Tensor:
            return self.unheard(self.heard(x))

    kept = {"heard.last": [1, 5], "unheard.last": [2, 3]}
    found = compared(made(Both), image(1, 8), kept=kept)
    assert found.exact
    assert found.untested == ("unheard.first", "unheard.last")
    assert "no output responds to them here: unheard.first, unheard.last." in str(found)


@pytest.mark.parametrize("kind", [Argmax, Rounded, WithoutGradients])
def test_a_response_is_seen_where_there_are_no_gradients(kind: type[nn.Module]) -> None:
    found = compared(made(kind), image(2, 12))
    assert found.exact
    assert found.untested == ()


def test_where_the_example_leaves_layers_dead_inputs_are_drawn_that_do_not() -> None:
    model = made(Branch)
    with torch.no_grad():
        model.first.bias.fill_(-2)  # on zeros every relu is shut
    found = compared(model, torch.zeros(1, 3, 8, 8))
    assert found.exact
    assert found.untested == ()
    assert len(found.inputs) > 1


def test_dead_relus_that_nothing_wakes_are_not_tested() -> None:
    model = made(Branch)
    with torch.no_grad():
        model.first.bias.fill_(-1e6)
    assert compared(model, image(1, 8)).relative_error is None


def test_an_empty_batch_is_tested_on_a_batch_of_two() -> None:
    model = made(Branch)
    exported, masked = pair(model, image(1, 8))
    found = compare(exported, masked, Example.of(torch.zeros(0, 3, 8, 8)))
    assert found.exact
    assert "inputs drawn like it" in found.inputs
    spoil(exported)
    assert not compare(exported, masked, Example.of(torch.zeros(0, 3, 8, 8))).exact


def test_a_model_that_gives_nothing_on_any_inputs_is_not_tested() -> None:
    class Nothing(Branch):
        def through(self, y: Tensor, x: Tensor) -> Tensor:
            return y[:, :, :0]

    found = compared(made(Nothing), image(1, 8))
    assert found.because == "the model returns no numbers on the example or on 3 drawn inputs"


def spoil(exported: nn.Module) -> None:
    """Swap two channels that the last layer reads."""
    with torch.no_grad():
        weight = exported.get_submodule("last").weight
        weight.copy_(weight[:, [1, 0, *range(2, weight.shape[1])]])


@pytest.mark.parametrize("other", [math.inf, -math.inf, math.nan, 1.0])
def test_numbers_that_are_not_finite_are_compared_place_by_place(other: float) -> None:
    class Given(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = value

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat((x, torch.full_like(x, self.value)))

    for value in (math.inf, -math.inf, math.nan):
        same = value == other or (math.isnan(value) and math.isnan(other))
        assert compare(Given(other), Given(value), Example.of(torch.ones(2))).exact == same


def test_a_model_of_which_nothing_is_pruned_is_still_compared() -> None:
    model = made(Branch)
    selection = upscale.Selection(kept={})
    exported = upscale.export(model, upscale.plan(model, image(1, 8), selection))
    assert compare(exported, model, Example.of(image(1, 8))).exact
    with torch.no_grad():
        exported.get_submodule("last").bias[0] += 1
    assert not compare(exported, model, Example.of(image(1, 8))).exact


def test_drawn_whole_numbers_are_among_those_that_the_example_shows() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.first, self.last = nn.Embedding(9, 4), nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return self.last(self.first(self.words(ids)).relu() * mask.unsqueeze(-1))

    ids, mask = (
        torch.tensor([[8, 3, 3, 0], [1, 8, 0, 3]]),
        torch.tensor([[True, True, False, True]]),
    )
    found = compared(made(Words), (ids, mask))
    assert found.exact
    assert found.inputs == ("the example", "inputs drawn like it")


def test_verification_leaves_the_random_state_alone() -> None:
    class Drawing(Branch):
        def through(self, y: Tensor, x: Tensor) -> Tensor:
            return y + torch.rand_like(y)

    for kind in (Branch, Drawing):
        exported, masked = pair(made(kind), image(1, 8))
        example, before = Example.of(image(1, 8)), torch.get_rng_state()
        assert compare(exported, masked, example).exact
        assert torch.equal(torch.get_rng_state(), before)


@dataclass
class Answer:
    scores: Tensor
    sizes: tuple[int, ...]


def test_tensors_within_dataclasses_are_compared() -> None:
    class Answering(Branch):
        def forward(self, x: Tensor) -> Answer:
            y = super().forward(x)
            return Answer(y, tuple(y.shape))

    one, other = made(Answering), made(Answering)
    assert compare(other, one, Example.of(image(1, 8))).exact
    with torch.no_grad():
        other.last.bias[0] += 1e-3
    assert not compare(other, one, Example.of(image(1, 8))).exact


def test_the_command_line_says_that_nothing_was_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unheard.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 3, 1)\n"
        "    def forward(self, x):\n"
        "        return x + 0 * self.b(self.a(x))\n"
    )
    given = ("unheard:Net", "--shape", "1,3,8,8", "--quiet", "--amount", "0.5")
    given += ("--out", str(tmp_path / "p.safetensors"))
    assert main(["prune", *given]) == 0
    told = capsys.readouterr()
    assert "Not tested: no output responds" in told.out
    assert "Verified" not in told.out
    assert "upscale: the export could not be verified" in told.err
    assert main(["prune", *given, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verified"] is False
    assert result["verification"]["relative_error"] is None
    assert result["verification"]["because"].startswith("no output responds")
