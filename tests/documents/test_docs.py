"""What the documents show runs as it stands there, and prints what they say it prints."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

import upscale
from upscale.cli.arguments import make_parser
from upscale.lab.sweep.cells import SETTINGS
from upscale.sweep import read_grid

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))

# It adds an operation to torch, which can be done once: tests/ops/ runs it.
ELSEWHERE = {"adding-a-rule.md"}


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)


RUN = [path for path in PAGES if blocks(path, "python") and path.name not in ELSEWHERE]


# Whether so small a network gains by pruning is no matter here.
@pytest.mark.filterwarnings("ignore::upscale.SlowerWarning")
@pytest.mark.parametrize("path", RUN, ids=lambda path: str(path.name))
def test_a_documents_python_runs_and_prints_what_it_says(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(path, "python"):
        exec(block, names)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for block in blocks(path, "output"):
        for line in block.splitlines():
            assert line in printed
    if check := CHECKS.get(path.name):
        check("\n".join(printed), names, tmp_path)


def selecting(printed: str, names: dict[str, Any], directory: Path) -> None:
    assert "asked 30.00% of channels, reached 29.82%" in printed


def targets(printed: str, names: dict[str, Any], directory: Path) -> None:
    assert "whole: " in printed


def files(printed: str, names: dict[str, Any], directory: Path) -> None:
    written = {path.name for path in directory.iterdir()}
    assert written == {"digits.safetensors", "digits.pt2", "digits.pt"}
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(names["masked"](x), names["pruned"](x))


def sweeping(printed: str, names: dict[str, Any], directory: Path) -> None:
    assert "8 measured, 0 failed" in printed
    page = DOCS / "sweeping.md"
    (shown,) = blocks(page, "yaml")
    (directory / "grid.yaml").write_text(shown)
    assert len(read_grid(directory / "grid.yaml")) == 2 * 2 * 3 * (1 + 2 + 2)
    for name in SETTINGS:
        assert f"`{name}`" in page.read_text(), name


CHECKS = {
    "selecting.md": selecting,
    "targets.md": targets,
    "files.md": files,
    "sweeping.md": sweeping,
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.name))
def test_every_file_a_document_links_is_there(path: Path) -> None:
    for linked in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / linked).exists(), linked


@pytest.mark.parametrize("path", [ROOT / "README.md", *PAGES], ids=lambda path: str(path.name))
def test_the_commands_a_document_shows_are_commands(path: Path) -> None:
    for block in blocks(path, "sh"):
        for command in re.findall(
            r"^(?:\.venv/bin/)?upscale (.*?)(?: +[#>].*)?$", block, re.MULTILINE
        ):
            make_parser().parse_args(command.split())


def test_the_reference_names_everything_public() -> None:
    text = (DOCS / "api.md").read_text()
    named = set(re.findall(r"auto(?:function|class|exception):: (?:[\w.]+\.)?(\w+)", text))
    assert not {*upscale.__all__, "solve", "picture"} - named - {"__version__", "deploy"}


def test_the_pictures_in_the_documents_tell_the_numbers_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pictures", str(tmp_path)])
    runpy.run_module("scripts.pictures", run_name="__main__")
    described = "{http://www.w3.org/2000/svg}desc"
    for path in sorted(tmp_path.iterdir()):
        fresh, shown = (
            ElementTree.parse(each).getroot().findtext(described)
            for each in (path, DOCS / "images" / path.name)
        )
        if path.name == "windows.svg":
            # Where its search ends depends on how a processor rounds; that nothing is copied not.
            fresh, shown = (
                re.sub(r"\d+ (channels|copy before)", r"\1", str(d)) for d in (fresh, shown)
            )
        assert shown == fresh, f"{path.name}: make pictures, and look at what it drew"
