"""A sweep that is killed loses nothing and repeats nothing; a worker that is, costs one attempt."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.lab.sweep import fakes
from upscale.sweep import read_records, run

CELLS, WORKERS = 50, 2
PATIENCE_S = 180

pytestmark = pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="needs kill and fork"
)


def _sweep(log: Path, records: Path, on: str, cells: int, metric: str) -> None:
    # Where tests run in a shell's background, interrupts are ignored from the start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    summary = run(fakes.grid(log, cells, metric), records, on=on, workers=WORKERS)
    records.with_suffix(".json").write_text(json.dumps(summary.before))


def _begin(*arguments: Any) -> Any:
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["upscale.cli"])
    process = context.Process(target=_sweep, args=arguments)
    process.start()
    return process


def _measured(log: Path) -> list[tuple[str, int]]:
    """The cells that were begun, and by which process."""
    if not log.exists():
        return []
    return [(line.split()[0], int(line.split()[1])) for line in log.read_text().splitlines()]


def _until(true: Any, said: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, said
        time.sleep(0.002)


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z"


# Each start of processes loads torch again, so these are killed less often.
@pytest.mark.parametrize(("on", "kills"), [("local", 6), ("processes", 2)])
def test_kills_lose_no_record_and_double_none(on: str, kills: int, tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "records.sqlite"
    chance = random.Random(on)
    safe: dict[str, Any] = {}
    begun_when_safe: Counter[str] = Counter()
    for _ in range(kills):
        before = len(_measured(log))
        process = _begin(log, path, on, CELLS, "quick")
        more = before + chance.randint(2, 5)
        _until(lambda n=more: len(_measured(log)) >= n, "the sweep does not go on")
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        _until(lambda: all(_is_gone(pid) for _, pid in _measured(log)), "a worker lives on")
        found = {record.cell.key: record for record in read_records(path)}
        assert safe.items() <= found.items()
        begun = Counter(key for key, _ in _measured(log))
        assert all(begun[key] == begun_when_safe[key] for key in safe)
        safe, begun_when_safe = found, begun
    assert 0 < len(safe) < CELLS, "no kill was in the middle of the sweep"
    process = _begin(log, path, on, CELLS, "quick")
    process.join()
    assert process.exitcode == 0
    assert json.loads(path.with_suffix(".json").read_text()) == len(safe)
    records = read_records(path)
    assert sorted(record.cell.seed for record in records) == list(range(CELLS))
    assert all(record.result == {"double": 2 * record.cell.seed} for record in records)
    assert len(_measured(log)) <= CELLS + kills * (WORKERS if on == "processes" else 1)


def test_a_worker_that_dies_once_costs_one_attempt(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    run(fakes.grid(tmp_path / "log", 4, "dies_once"), path, on="processes", workers=WORKERS)
    found = {record.cell.seed: record for record in read_records(path)}
    assert [found[seed].result for seed in range(4)] == [{"double": 2 * s} for s in range(4)]
    assert [found[seed].attempts for seed in range(4)] == [1, 2, 1, 1]


def test_a_cell_that_kills_its_workers_is_an_error_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    summary = run(fakes.grid(tmp_path / "log", 4, "dies"), path, on="processes", workers=WORKERS)
    assert (summary.measured, summary.failed) == (4, 1)
    found = {record.cell.seed: record for record in read_records(path)}
    assert found[1].error == "WorkerDied: its worker died 2 times, at last by signal 9"
    assert all(found[seed].error is None for seed in (0, 2, 3))


def test_an_interrupt_ends_the_workers_and_keeps_the_records(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "records.sqlite"
    process = _begin(log, path, "processes", 2, "waits")
    _until(lambda: len(_measured(log)) == 2, "the sweep does not begin")
    os.kill(process.pid, signal.SIGINT)
    process.join(PATIENCE_S)
    assert process.exitcode == 1
    _until(lambda: all(_is_gone(pid) for _, pid in _measured(log)), "a worker lives on")
    assert read_records(path) == ()
