"""Files are put in place on systems that refuse it while somebody reads, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from upscale.tools import moving
from upscale.tools.moving import put_in_place


def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> list[Path]:
    """Let files refuse to be replaced so often; gives what was tried."""
    usual, tried = Path.replace, []

    def replace(new: Path, old: Path) -> Path:
        tried.append(old)
        if len(tried) <= times:
            raise PermissionError(13, "somebody reads it")
        return usual(new, old)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(moving, "PAUSE_S", 0.0)
    return tried


def test_a_file_that_is_read_is_replaced_when_the_reader_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_text("new")
    old.write_text("old")
    tried = refusing(monkeypatch, times=3)
    put_in_place(new, old)
    assert (old.read_text(), new.exists(), len(tried)) == ("new", False, 4)


def test_a_file_that_is_never_let_go_stays_and_the_refusal_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    new.write_text("new")
    old.write_text("old")
    refusing(monkeypatch, times=10**9)
    monkeypatch.setattr(moving, "PATIENCE_S", 0.0)
    with pytest.raises(PermissionError):
        put_in_place(new, old)
    assert old.read_text() == "old"
