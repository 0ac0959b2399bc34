"""Options are declared once: the library, the command line and sweeps say the same."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields

import pytest
import torch
from torch import nn

import upscale
from upscale.cli.arguments import make_parser
from upscale.cli.main import _options
from upscale.selection.importance import BY_WEIGHT
from upscale.selection.options import OPTIONS, Options
from upscale.sweep import Cell, GridError

WRONG = {
    "scope": "everywhere",
    "side": "left",
    "constraint": None,
    "segments": "some",
    "after": "both",
    "ignore": "fc",
    "floor": -1,
    "round_to": 0,
    "slack": float("inf"),
}
DECLARED = {own.name: own.default for own in fields(Options) if own.default is not MISSING}


def test_select_is_called_with_the_options_declared_and_their_defaults() -> None:
    signature = inspect.signature(upscale.select).parameters
    # A target is no option of choosing: `round_to="target"` is a number once it is known.
    given = ("model", "example", "target")
    own = {name: p for name, p in signature.items() if name not in given}
    assert all(p.kind is p.KEYWORD_ONLY for p in own.values())
    said = {name: p.default for name, p in own.items() if p.default is not p.empty}
    assert said == DECLARED
    assert own.keys() == {"amount", *DECLARED}


def test_prune_takes_every_option_and_none_besides() -> None:
    net, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(1, 4)
    pruned = upscale.prune(net, x, amount=0.5, **DECLARED)
    assert pruned.get_submodule("0").out_features == 4
    with pytest.raises(TypeError, match="scoep"):
        upscale.prune(net, x, amount=0.5, scoep="global")


def test_every_mistake_is_told_in_the_words_of_the_declaration() -> None:
    assert WRONG.keys() | {"importance"} == OPTIONS.keys()
    for name, value in WRONG.items():
        with pytest.raises(upscale.SelectionError) as caught:
            Options(upscale.Amount(0.5), **{name: value})
        assert str(caught.value) == f"{name} is {value!r}; it must be {OPTIONS[name].must_be}"


def test_the_command_line_has_an_argument_for_every_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = _options(make_parser().parse_args(["bench", "a:b"]))
    assert Options(upscale.Amount(0), **said) == Options(upscale.Amount(0), ignore=[])
    with pytest.raises(SystemExit):
        make_parser().parse_args(["prune", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for name, option in OPTIONS.items():
        assert f"--{name.replace('_', '-')} " in told
        assert option.about in told


@pytest.mark.parametrize("name", OPTIONS)
def test_the_command_line_takes_what_an_option_may_be(name: str) -> None:
    option = OPTIONS[name]
    values = BY_WEIGHT if name == "importance" else option.choices or ("3",)
    for value in values:
        arguments = ["bench", "a:b", f"--{name.replace('_', '-')}", value]
        said = _options(make_parser().parse_args(arguments))[name]
        assert said == ([value] if name == "ignore" else (option.number or str)(value))


def test_a_cell_refuses_what_an_option_refuses_in_the_same_words() -> None:
    for name in ("scope", "side", "constraint", "segments", "slack"):
        with pytest.raises(GridError) as caught:
            Cell("a:b", "macs", 0.5, **{name: WRONG[name]})
        assert str(caught.value) == OPTIONS[name].complaint(name, WRONG[name])
