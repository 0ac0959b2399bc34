"""Whatever a cell does, it ends as a failed record and the others go on."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sweep import fakes
from upscale.lab.sweep.attempts import BEGUN, WAITING, Job, attempt
from upscale.lab.sweep.locks import cores
from upscale.lab.sweep.trials import Memory
from upscale.sweep import Cell, GridError, Record, as_csv, as_table, read_records, run

PLACES = ("local", "processes")
CELLS = 4


def measured(metric: str, on: str, path: Path, **settings: Any) -> dict[int, Record]:
    """The records of some cells by seed, those of odd seeds bad; checks that the others are not."""
    summary = run(fakes.grid(path / "log", CELLS, metric), path / "r.sqlite", on=on, **settings)
    assert (summary.measured, summary.failed) == (CELLS, CELLS // 2)
    records = read_records(path / "r.sqlite")
    assert as_csv(records).encode()
    assert as_table(records).encode()
    found = {record.cell.seed: record for record in records}
    for seed in range(0, CELLS, 2):
        assert found[seed].result == {"double": 2 * seed}
    return {seed: own for seed, own in found.items() if seed % 2}


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("exits", "SystemExit: 0"),
        ("prints_bytes", r"OSError: no such file: \udcff"),
        ("will_not_say", "_Silent"),
        ("ends_as_a_generator", "GeneratorExit: "),
    ],
)
def test_a_cell_that_leaves_or_raises_what_cannot_be_written_fails_alone(
    metric: str, said: str, on: str, tmp_path: Path, capfdbinary: Any
) -> None:
    workers = {} if on == "local" else {"workers": 2}
    for record in measured(metric, on, tmp_path, **workers).values():
        assert record.error == said


@pytest.mark.parametrize("on", PLACES)
def test_a_seed_out_of_range_fails_alone(on: str, tmp_path: Path) -> None:
    seeds = [0, 2**64 - 1, 2**64, 2**80]
    grid = fakes.grid(tmp_path / "log", 1, seed=seeds)
    assert run(grid, tmp_path / "r.sqlite", on=on, workers=1).failed == 2
    found = {record.cell.seed: record for record in read_records(tmp_path / "r.sqlite")}
    assert [found[seed].error is None for seed in seeds] == [True, True, False, False]
    assert (found[2**64].error or "").startswith("GridError: seed is 18446744073709551616; torch")


def test_half_a_character_in_a_result_is_replaced(tmp_path: Path) -> None:
    run(fakes.grid(tmp_path / "log", 1, "gives_half_a_character"), tmp_path / "r.sqlite")
    (record,) = read_records(tmp_path / "r.sqlite")
    assert record.result == {"said": "?"}


@pytest.mark.parametrize(
    ("metric", "on"),
    [
        ("spins", "local"),
        ("hangs_with_a_child", "local"),
        ("spins", "processes"),
        ("hangs_with_a_child", "processes"),
        ("hangs_in_native_code", "processes"),
        ("stops", "processes"),
    ],
)
def test_a_cell_that_hangs_fails_when_its_time_is_over(
    metric: str, on: str, tmp_path: Path
) -> None:
    start = time.monotonic()
    workers = {} if on == "local" else {"workers": 2}
    found = measured(metric, on, tmp_path, timeout=0.5, **workers)
    assert time.monotonic() - start < 30
    for record in found.values():
        assert record.error == "TimedOut: it took longer than 0.5 s"
        assert 0.5 <= record.seconds < 10
        assert record.attempts == 1
    assert not sleeping(), "what a cell has started lives on"


def sleeping() -> list[str]:
    """The processes that hanging cells of these tests start."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"61.19" in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_a_cell_that_is_killed_fails_alone(tmp_path: Path) -> None:
    for record in measured("killed", "processes", tmp_path, workers=2).values():
        assert record.error == "WorkerDied: its worker died 2 times, at last by signal 9"


def test_a_timeout_in_the_grid_is_held_and_one_that_is_asked_for_comes_first(
    tmp_path: Path,
) -> None:
    grid = fakes.grid(tmp_path / "log", 2, "spins", timeout=0.3)
    run(grid, tmp_path / "a.sqlite")
    run(grid, tmp_path / "b.sqlite", timeout=0.6)
    told = [
        record.error
        for name in "ab"
        for record in read_records(tmp_path / f"{name}.sqlite")
        if record.error
    ]
    assert told == [f"TimedOut: it took longer than {time} s" for time in (0.3, 0.6)]


def test_a_thread_that_cannot_hold_a_timeout_says_so(tmp_path: Path) -> None:
    told: list[str] = []

    def sweep() -> None:
        with pytest.raises(GridError) as caught:
            run(fakes.grid(tmp_path / "log", 1), tmp_path / "r.sqlite", timeout=1)
        told.append(str(caught.value))

    thread = threading.Thread(target=sweep)
    thread.start()
    thread.join()
    assert 'run the sweep on="processes"' in told[0]


def test_a_metric_whose_module_fails_to_load_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving_of_this_test.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "failing_of_this_test.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = ["leaving_of_this_test:x", "failing_of_this_test:x", "tests.lab.sweep.fakes:quick"]
    cells = [Cell("none", metric, 0, data=str(tmp_path / "log")) for metric in names]
    run(cells, tmp_path / "r.sqlite")
    found = {record.cell.metric: record.error for record in read_records(tmp_path / "r.sqlite")}
    assert [found[name] for name in names] == [
        "SystemExit: 0",
        "ZeroDivisionError: division by zero",
        None,
    ]


@contextlib.contextmanager
def cores_taken(seconds: float) -> Iterator[None]:
    """Somebody else has the machine's cores, and gives them back after a while."""
    taken = threading.Event()

    def take() -> None:
        with cores(alone=True):
            taken.set()
            time.sleep(seconds)

    thread = threading.Thread(target=take)
    thread.start()
    taken.wait()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock of this test's own: other sweeps on this machine have nothing to do with it."""
    monkeypatch.setattr("upscale.lab.sweep.locks.CORES", f"cores-of-a-test-{os.getpid()}")


@pytest.mark.usefixtures("own_lock")
def test_waiting_for_the_cores_is_said_and_is_not_on_the_clock(tmp_path: Path) -> None:
    said: list[str] = []
    with cores_taken(1.0):
        grid = fakes.grid(tmp_path / "log", 2)
        run(grid, tmp_path / "r.sqlite", timeout=0.5, say=said.append)
    assert said == ["waiting for the cores: another sweep on this machine has them"]
    assert [record.error for record in read_records(tmp_path / "r.sqlite")] == [None, None]
    run(fakes.grid(tmp_path / "log", 3), tmp_path / "r.sqlite", say=said.append)
    assert len(said) == 1, "nobody waits where nobody else has the cores"


@pytest.mark.usefixtures("own_lock")
def test_a_worker_notes_when_it_waits(tmp_path: Path) -> None:
    """On processes this goes through the pipe to the sweep, which says it."""
    noted: list[str] = []
    (cell,) = fakes.grid(tmp_path / "log", 1).cells()
    with cores_taken(0.2):
        assert attempt(Job(cell), Memory(), note=noted.append).error is None
    assert noted == [BEGUN, WAITING, BEGUN]


def test_a_sweep_on_processes_says_that_it_waits(tmp_path: Path) -> None:
    said: list[str] = []
    held = contextlib.ExitStack()

    def say(line: str) -> None:
        said.append(line)
        held.close()

    held.enter_context(cores(alone=False))
    grid = fakes.grid(tmp_path / "log", 1, "timed")
    run(grid, tmp_path / "r.sqlite", on="processes", workers=1, say=say)
    assert said == ["waiting for the cores: another sweep on this machine has them"]
    assert [record.error for record in read_records(tmp_path / "r.sqlite")] == [None]
