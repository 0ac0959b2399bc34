"""What the documents show runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from upscale.sweep import read_grid
from upscale.sweep.cells import SETTINGS

DOCS = Path(__file__).parent.parent / "docs"


# Whether so small a network gains by pruning is no matter here.
@pytest.mark.filterwarnings("ignore::upscale.SlowerWarning")
@pytest.mark.parametrize(
    ("name", "printed"),
    [("selecting.md", "asked 30.00% of channels, reached 29.82%"), ("targets.md", "whole: ")],
)
def test_a_documents_python_runs(
    name: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert printed in capsys.readouterr().out


def test_the_page_on_files_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "files.md").read_text(), re.DOTALL):
        exec(block, names)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"digits.safetensors", "digits.pt2", "digits.pt"}
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(names["masked"](x), names["pruned"](x))


def test_the_page_on_sweeps_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "sweeping.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(block, {})
    assert "8 measured, 0 failed" in capsys.readouterr().out
    (shown,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "grid.yaml").write_text(shown)
    assert len(read_grid(tmp_path / "grid.yaml")) == 2 * 2 * 3 * (1 + 2 + 2)
    for name in SETTINGS:
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: str(path.name))
def test_every_file_a_document_links_is_there(path: Path) -> None:
    for linked in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / linked).exists(), linked
