"""Errors of the command line: as JSON where JSON is asked for, and by a status that fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from upscale.cli import main

CODE = """\
import sys
def fails(): raise ValueError("not today")
def leaves(): sys.exit(0)
def no_model(): return 3
"""


@pytest.mark.parametrize(
    ("arguments", "status", "kind", "said"),
    [
        (["inspect", "nowhere"], 1, "SourceError", "is no file"),
        (["inspect", "code_of_this_test:fails"], 1, "SourceError", "ValueError: not today"),
        (["inspect", "code_of_this_test:no_model"], 1, "SourceError", "not a torch.nn.Module"),
        (["inspect", "upscale:digits", "--shape", "1,9,8,8"], 1, "ExampleError", "stem.conv"),
        (["inspect", "upscale:digits", "--shape", "x"], 2, "ArgumentsError", "--shape is 'x'"),
        (["prune", "upscale:digits"], 2, "ArgumentsError", "--out"),
        (["prune", "upscale:digits", "--amount", "3", "--out", "x"], 2, "ArgumentsError", "is 3.0"),
        (["sweep", "nowhere.yaml"], 1, "GridError", "nowhere.yaml is no file"),
        (["sweep", "nowhere.yaml", "--csv"], 2, "ArgumentsError", "give both"),
        (
            ["bench", "upscale:digits", "--against", "x", "--shape", "1,1,8,8"],
            1,
            "SourceError",
            "x",
        ),
    ],
)
def test_an_error_is_one_json_object_where_json_is_asked_for(
    arguments: list[str],
    status: int,
    kind: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "code_of_this_test.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "--json", "--quiet"]) == status
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert found["error"] == kind
    assert said in found["message"]
    assert len(told.err.splitlines()) == 1
    assert main([*arguments, "--quiet"]) == status
    assert capsys.readouterr().out == ""


def test_code_that_ends_the_program_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code_of_this_test.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    options = ("--amount", "0.1", "--out", "x", "--json")
    assert main(["prune", "code_of_this_test:leaves", *options]) == 1
    assert "sys.exit(0)" in json.loads(capsys.readouterr().out)["message"]


def test_an_error_that_nobody_foresaw_is_told_with_where_it_came_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("upscale.lab.sources.digits", breaks)
    assert main(["inspect", "upscale:digits", "--json", "--quiet"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out) == {
        "error": "ZeroDivisionError",
        "message": "ZeroDivisionError: a bug",
    }
    assert "in breaks" in told.err
