"""Sweeps on Ray; skipped where it is not installed (`make sweeps` installs it)."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sweep import fakes
from upscale.lab.sweep.on_ray import RayUnavailable
from upscale.sweep import Grid, Record, read_records, run

ray: Any = pytest.importorskip("ray")

# Ray's own code warns, leaves sockets open and reaps no children; none of that is ours to prove.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROOT = str(Path(__file__).parents[3])


@pytest.fixture(autouse=True, scope="module")
def _workers_find_the_tests() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]))
        # One for all tests, since Ray reads it once; without one it writes one for good.
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.chdir(ROOT)
        yield


def _kill_who_waits(log: Path, key: str, killed: list[int]) -> None:
    """Kill the worker that waits in a cell, once another worker has begun as well."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        lines = log.read_text().splitlines() if log.exists() else []
        begun = {line.split()[0]: int(line.split()[1]) for line in lines}
        if key in begun and len(set(begun.values())) > 1:
            os.kill(begun[key], signal.SIGKILL)
            killed.append(begun[key])
            return
        time.sleep(0.01)


def test_with_two_workers_and_one_killed_the_sweep_completes(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "records.sqlite"
    killed: list[int] = []
    grid = fakes.grid(log, 20, "awaits_its_end_once")
    first = next(cell for cell in grid.cells() if cell.seed == 0)
    killer = threading.Thread(target=_kill_who_waits, args=(log, first.key, killed))
    killer.start()
    summary = run(grid, path, on="ray", workers=2)
    killer.join()
    assert killed
    assert (summary.measured, summary.failed) == (20, 0)
    found = {record.cell.seed: record for record in read_records(path)}
    assert {seed: found[seed].result for seed in range(20)} == {
        seed: {"double": 2 * seed} for seed in range(20)
    }
    assert found[0].attempts == 2
    assert run(grid, path, on="ray", workers=2).measured == 0


def test_ray_gives_the_records_that_one_process_gives_and_times_alone(tmp_path: Path) -> None:
    digits = {"model": "upscale:digits", "shape": "1,1,8,8", "data": "upscale:digits"}
    own = Grid({**digits, "amount": 0.5, "metric": ["accuracy", "copies"]})
    log = tmp_path / "log"
    cells = (*own.cells(), *fakes.grid(log, 3, ["fails", "quick", "timed", "dies"]).cells())
    run([c for c in cells if "dies" not in c.metric], tmp_path / "one.sqlite")
    run(cells, tmp_path / "two.sqlite", on="ray", workers=2)
    one, two = (
        {record.cell: record for record in read_records(tmp_path / f"{name}.sqlite")}
        for name in ("one", "two")
    )
    for cell, record in one.items():
        assert (two[cell].result, two[cell].error) == (record.result, record.error)
    assert {two[cell].error for cell in cells if "dies" in cell.metric} == {
        None,
        "WorkerDied: its worker died 2 times, at last WorkerCrashedError",
    }
    for timed in (record for cell, record in two.items() if "timed" in cell.metric):
        assert all(_apart(timed, other) for other in two.values() if other is not timed)


def test_cells_that_leave_hang_or_print_bytes_fail_alone(tmp_path: Path) -> None:
    metrics = ["exits", "prints_bytes", "spins", "hangs_with_a_child"]
    cells = (
        *fakes.grid(tmp_path / "log", 2, metrics).cells(),
        *fakes.grid(tmp_path / "log", 1, seed=2**64).cells(),
    )
    path = tmp_path / "records.sqlite"
    assert run(cells, path, on="ray", workers=2, timeout=1).failed == 5
    found = [record for record in read_records(path) if record.error is not None]
    failed = {record.cell.metric.split(":")[1]: record.error or "" for record in found}
    assert failed["exits"] == "SystemExit: 0"
    assert failed["prints_bytes"].startswith(("OSError: no such file", "UnicodeEncodeError"))
    assert failed["quick"].startswith("GridError: seed is 18446744073709551616")
    for name in ("spins", "hangs_with_a_child"):
        assert failed[name] == "TimedOut: it took longer than 1 s"


def _apart(one: Record, other: Record) -> bool:
    first, second = sorted((one, other), key=lambda record: record.begun)
    return first.begun + first.seconds <= second.begun


def test_an_address_without_a_ray_is_said(tmp_path: Path) -> None:
    with pytest.raises(RayUnavailable, match=r"no Ray at 127\.0\.0\.1:1"):
        run(fakes.grid(tmp_path, 1), tmp_path / "r.sqlite", on="ray", address="127.0.0.1:1")
