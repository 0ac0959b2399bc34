"""The matrix of versions: what is tried, what is not tried again, and what the page says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from scripts.matrix import __main__ as matrix
from scripts.matrix import environments
from scripts.matrix.cells import CELLS, Cell, to_run
from scripts.matrix.environments import NoEnvironment, interpreter
from scripts.matrix.suite import outcome
from scripts.matrix.table import is_green, page, row

OLD, NEW = Cell("2.7", "3.10", "1.26", "4"), Cell("2.15", "3.13", "2", "5")


def record(cell: Cell, **more: Any) -> dict[str, Any]:
    """A record of a cell in which all is well, but for what is said."""
    own = {"torch": f"{cell.torch}.1", "python": f"{cell.python}.2", "numpy": cell.numpy}
    found: dict[str, Any] = {
        "cell": {"torch": cell.torch, "python": cell.python},
        "installed": own,
        "passed": 10,
        "failed": [],
        "skipped": {"needs a thing": 2},
        "minutes": 3.4,
        "exchange": {cell.key.replace(" ", "_"): {"read": 6, "faults": {}}},
    }
    return {**found, **more}


def test_every_version_that_is_claimed_is_in_the_matrix() -> None:
    assert {cell.torch for cell in CELLS} == {"2.6", "2.7", "2.9", "2.11", "2.13", "2.15"}
    assert {cell.python for cell in CELLS} == {"3.10", "3.11", "3.12", "3.13"}
    assert {cell.numpy.split(".")[0] for cell in CELLS} == {"1", "2"}
    assert {cell.transformers for cell in CELLS} == {"4", "5"}
    assert len({cell.key for cell in CELLS}) == len(CELLS)


def test_what_has_a_record_is_not_tried_again_unless_asked() -> None:
    known = {OLD.key: record(OLD)}
    assert to_run((OLD, NEW), known) == [NEW]
    assert to_run((OLD, NEW), known, again=True) == [OLD, NEW]
    assert to_run((OLD, NEW), known, only=["2.7"]) == []
    assert to_run((OLD, NEW), known, only=["2.7"], again=True) == [OLD]
    assert to_run((OLD, NEW), {Cell("2.7", "3.11", "1.26", "4").key: {}}) == [OLD, NEW]


def test_an_interpreter_comes_from_the_folders_that_are_named_or_from_path(tmp_path: Path) -> None:
    named, usual = tmp_path / "named" / "python3.10", tmp_path / "usual" / "python3.10"
    for path in (named, usual):
        path.parent.mkdir()
        path.write_text("")
        path.chmod(0o755)
    both = {environments.PYTHONS: str(named.parent), "PATH": str(usual.parent)}
    assert interpreter("3.10", both) == str(named)
    assert interpreter("3.10", {"PATH": str(usual.parent)}) == str(usual)
    with pytest.raises(NoEnvironment, match=r"no python3\.12.*UPSCALE_PYTHONS"):
        interpreter("3.12", both)


def test_a_report_is_counted_and_failures_are_named() -> None:
    report = ElementTree.fromstring(
        """<testsuites><testsuite>
        <testcase classname="tests.a" name="one"/>
        <testcase classname="tests.a" name="two"><failure message="no"/></testcase>
        <testcase classname="tests.b" name="three"><error message="no"/></testcase>
        <testcase classname="tests.b" name="four"><skipped message="needs a thing"/></testcase>
        <testcase classname="tests.b" name="five"><skipped message="needs a thing"/></testcase>
        </testsuite></testsuites>"""
    )
    assert outcome(report) == {
        "passed": 1,
        "failed": ["tests.a::two", "tests.b::three"],
        "skipped": {"needs a thing": 2},
    }


def test_the_page_has_a_row_for_each_record_oldest_first_and_names_the_rest() -> None:
    text = page((NEW, OLD), {OLD.key: record(OLD), NEW.key: record(NEW)})
    rows = [line for line in text.splitlines() if line.startswith("| 2.")]
    assert [line.split(" | ")[0] for line in rows] == ["| 2.7.1", "| 2.15.1"]
    assert "in 2 of 2 environments: 2 versions of torch and 2 of Python" in text
    assert "- needs a thing: 2 with torch 2.7, 2 with torch 2.15" in text
    assert "What fails" not in text
    assert f"Not tried yet: {NEW.key}." in page((OLD, NEW), {OLD.key: record(OLD)})


def test_a_failure_is_named_and_counts_against_its_environment() -> None:
    fault = {"other": {"read": 6, "faults": {"Plain.input file": "outputs are 1.0 apart"}}}
    broken = {
        "failed": record(OLD, failed=["tests.a::two"]),
        "files": record(OLD, exchange=fault),
        "unread": record(OLD, exchange={"error": "no module"}),
        "nothing ran": record(OLD, passed=0),
    }
    said = {"failed": "tests.a::two", "files": "outputs are 1.0 apart", "unread": "no module"}
    for kind, own in broken.items():
        text = page((OLD,), {OLD.key: own})
        assert not is_green(own)
        assert "in 0 of 1 environments" in text
        assert said.get(kind, "") in text
    assert row(broken["files"], {})[-2] == "5 of 6"
    assert is_green(record(OLD))


def test_a_run_that_is_stopped_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Cell] = []

    def try_cell(cell: Cell, work: Path) -> dict[str, Any]:
        tried.append(cell)
        if len(tried) == 2:
            raise KeyboardInterrupt
        return record(cell)

    monkeypatch.setattr(matrix, "try_cell", try_cell)
    monkeypatch.setattr(matrix, "CELLS", (OLD, NEW))
    monkeypatch.setattr(matrix, "RECORDS", tmp_path / "versions.json")
    monkeypatch.setattr(matrix, "PAGE", tmp_path / "versions.md")
    monkeypatch.setenv(matrix.PLACE, str(tmp_path / "work"))
    monkeypatch.setattr("sys.argv", ["matrix"])
    with pytest.raises(KeyboardInterrupt):
        matrix.main()
    assert set(json.loads((tmp_path / "versions.json").read_text())) == {OLD.key}
    matrix.main()
    assert tried == [OLD, NEW, NEW]
    assert "2 of 2 environments" in (tmp_path / "versions.md").read_text()
