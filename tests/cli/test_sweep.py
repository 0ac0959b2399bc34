"""`upscale sweep`: what it prints, records and returns."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
import time
from pathlib import Path

import pytest

from upscale.cli import main
from upscale.lab.sweep.locks import cores
from upscale.sweep import read_records

GRID = """\
model: upscale:digits
shape: [1, 1, 8, 8]
data: upscale:digits
images: 20
amount: [0.2, 0.4]
metric: [accuracy, copies]
"""


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "grid.yaml"
    path.write_text(GRID)
    return path


def test_a_sweep_is_recorded_beside_its_grid_resumed_and_shown(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", str(grid), "--quiet"]) == 0
    assert "4 cells: 4 measured now, 0 recorded before, 0 failed" in capsys.readouterr().out
    assert len(read_records(grid.with_suffix(".sqlite"))) == 4
    assert main(["sweep", str(grid), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["before"] == 4
    assert main(["sweep", str(grid), "--show"]) == 0
    shown = capsys.readouterr().out
    assert "model: upscale:digits" in shown.splitlines()[0]
    assert "top1_percent" in shown
    assert len(shown.splitlines()) == 7
    assert main(["sweep", str(grid), "--show", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["amount"] for row in rows} == {"0.2", "0.4"}
    assert main(["sweep", str(grid), "--show", "--json"]) == 0
    assert [row["key"] for row in json.loads(capsys.readouterr().out)] == [r["key"] for r in rows]


def test_only_the_grids_own_records_are_shown(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = grid.with_name("other.yaml")
    other.write_text(GRID.replace("[accuracy, copies]", "parameters"))
    records = ("--records", "all.sqlite", "--quiet")
    assert main(["sweep", str(other), *records]) == 0
    capsys.readouterr()
    assert main(["sweep", str(grid), *records, "--show"]) == 0
    assert capsys.readouterr().out == "No cell of this grid has a record yet.\n"


def test_a_failed_cell_is_told_and_makes_the_status_1(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid.write_text(GRID.replace("data: upscale:digits", "data: nowhere"))
    assert main(["sweep", str(grid)]) == 1
    told = capsys.readouterr()
    assert "failed: accuracy upscale:digits 0.2 of channels 20: SourceError: data is" in told.err
    assert "2 failed" in told.out
    assert main(["sweep", str(grid), "--quiet", "--show"]) == 0
    assert "SourceError" in capsys.readouterr().out
    assert main(["sweep", str(grid), "--quiet", "--retry", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["measured"] == 2


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["nowhere.yaml"], 1, "nowhere.yaml is no file; give a grid as .yaml or .py"),
        (["grid.yaml", "--timeout", "-1"], 2, "--timeout: it is '-1'"),
        (["grid.yaml", "--csv"], 2, "--csv is how --show prints"),
        (["grid.yaml", "--address", "auto"], 2, "--address is that of a Ray"),
        (["grid.yaml", "--show"], 1, "nothing has been measured yet"),
        (["grid.yaml", "--on", "processes", "--workers", "0"], 2, "--workers: it is '0'"),
        (["grid.yaml", "--records", "grid.yaml"], 1, "grid.yaml is no file of records"),
        (["grid.yaml", "--records", "no/such/place"], 1, "is no file of records"),
        (["bad.yaml"], 1, "bad.yaml: there is no setting 'models'; did you mean 'model'?"),
    ],
)
def test_a_users_mistake_is_one_line(
    arguments: list[str],
    status: int,
    said: str,
    grid: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (grid.parent / "bad.yaml").write_text("models: a\n")
    assert main(["sweep", *arguments, "--quiet"]) == status
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert grid.read_text() == GRID


def test_a_cell_that_hangs_is_told_and_so_is_waiting_for_the_cores(
    grid: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upscale.lab.sweep.locks.CORES", f"cores-of-a-test-{os.getpid()}")
    (grid.parent / "hanging_of_this_test.py").write_text(
        "import time\ndef hang(trial):\n    time.sleep(60)\nhang.selects = False\n"
    )
    grid.write_text(GRID.replace("[accuracy, copies]", "hanging_of_this_test:hang"))
    taken = threading.Event()

    def take() -> None:
        with cores(alone=True):
            taken.set()
            time.sleep(0.5)

    thread = threading.Thread(target=take)
    thread.start()
    taken.wait()
    assert main(["sweep", str(grid), "--timeout", "0.2", "--json"]) == 1
    thread.join()
    told = capsys.readouterr()
    assert json.loads(told.out)["failed"] == 2
    assert told.err.count("waiting for the cores") == 1
    assert told.err.count("TimedOut: it took longer than 0.2 s") == 2


def test_what_cells_print_is_no_part_of_the_result(
    grid: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (grid.parent / "loud_of_this_test.py").write_text(
        "def loud(trial):\n    print('hello')\n    return {}\nloud.selects = False\n"
    )
    grid.write_text(GRID.replace("[accuracy, copies]", "loud_of_this_test:loud"))
    assert main(["sweep", str(grid), "--quiet", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["measured"] == 2
    assert told.err == "hello\nhello\n"


def test_progress_tells_the_time_left(
    grid: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("upscale.cli.progress.EVERY", 0.01)
    monkeypatch.setattr("upscale.cli.progress.SLOW", 0.02)
    (grid.parent / "slow_of_this_test.py").write_text(
        "import time\ndef slow(trial):\n    time.sleep(0.1)\n    return {}\nslow.selects = False\n"
    )
    grid.write_text(GRID.replace("[accuracy, copies]", "slow_of_this_test:slow"))
    start = time.monotonic()
    assert main(["sweep", str(grid)]) == 0
    assert time.monotonic() - start > 0.2
    told = capsys.readouterr().err
    assert "[1/2] 0 of 2 cells\n" in told
    assert "[2/2] 1 of 2 cells, about 0 s left\n" in told
