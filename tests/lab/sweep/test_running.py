"""Running sweeps: the same records wherever, failures told, timed cells alone."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.lab.sweep import fakes
from upscale.lab.sweep.locks import holding
from upscale.lab.sweep.records import Records
from upscale.lab.sweep.running import Pace
from upscale.sweep import Grid, GridError, Record, RecordsError, read_records, run
from upscale.zoo import digits_data

DIGITS = {
    "model": "upscale:digits",
    "shape": "1,1,8,8",
    "data": "upscale:digits",
    "images": 50,
    "amount": 0.5,
}


def test_a_second_run_measures_nothing(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "records.sqlite"
    assert run(fakes.grid(log, 3), path).measured == 3
    before = read_records(path)
    summary = run(fakes.grid(log, 3), path)
    assert (summary.cells, summary.before, summary.measured) == (3, 3, 0)
    assert run(fakes.grid(log, 5), path).measured == 2
    assert read_records(path)[:3] == before
    assert len(log.read_text().splitlines()) == 5


def test_a_failed_cell_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "records.sqlite"
    summary = run(fakes.grid(log, 4, "fails"), path)
    assert (summary.measured, summary.failed) == (4, 2)
    found = {record.cell.seed: record for record in read_records(path)}
    assert found[1].error == "ZeroDivisionError: odd"
    assert "in _fails" in (found[1].trace or "")
    assert found[2].result == {"double": 4}
    assert run(fakes.grid(log, 4, "fails"), path).measured == 0
    again = run(fakes.grid(log, 4, "fails"), path, retry=True)
    assert (again.before, again.measured, again.failed) == (2, 2, 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"metric": "accuracy", "data": None}, "GridError: accuracy needs data"),
        ({"metric": "accuracy", "data": "nowhere"}, "SourceError: data is 'nowhere'"),
        ({"metric": "accuracy", "data": "math:pi"}, "SourceError: math:pi gives no batches"),
        ({"metric": "no.such:thing"}, "SourceError: no.such:thing cannot be imported"),
        ({"metric": "math:pi"}, "SourceError: math:pi is a float, not a function of a trial"),
        ({"metric": "macs", "model": "os:getcwd"}, "SourceError: os:getcwd gives a str"),
        ({"metric": "macs", "importance": "hrank"}, "importance 'hrank' needs data"),
        ({"metric": "macs", "shape": "1,3,8,8"}, "ExampleError: "),
    ],
)
def test_what_is_wrong_with_a_cell_is_in_its_record(
    settings: dict[str, str], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "records.sqlite"
    run(Grid({**DIGITS, **settings}), path)
    (record,) = read_records(path)
    assert said in (record.error or ""), record.error
    assert record.result is None


def test_a_metric_that_gives_no_json_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    run(fakes.grid(tmp_path / "log", 2, ["gives_no_json", "quick"]), path)
    errors = {record.error for record in read_records(path)}
    assert errors == {None, "TypeError: a metric gave a object; it must give numbers or text"}


def test_processes_give_the_records_that_one_process_gives(tmp_path: Path) -> None:
    metrics = ["accuracy", "parameters", "macs", "copies", "memory"]
    grid = Grid({**DIGITS, "importance": ["l1", "random"], "metric": metrics})
    run(grid, tmp_path / "one.sqlite")
    run(grid, tmp_path / "two.sqlite", on="processes", workers=2)
    one, two = (
        {r.cell: (r.result, r.error) for r in read_records(tmp_path / f"{name}.sqlite")}
        for name in ("one", "two")
    )
    assert one == two
    assert set(one) == set(grid.cells())
    assert all(error is None for _, error in one.values())


def test_what_is_measured_is_what_the_library_says(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    metrics = ["accuracy", "latency", "copies", "parameters"]
    run(Grid({**DIGITS, "metric": metrics, "runs": 3, "amount": 0}), path)
    found = {record.cell.metric: record.result or {} for record in read_records(path)}
    assert found["accuracy"]["top1_percent"] == 100
    assert found["accuracy"]["images"] == 50
    assert found["latency"]["ratio"] == pytest.approx(
        found["latency"]["exported_ms"] / found["latency"]["unpruned_ms"]
    )
    assert found["copies"]["copied_bytes"] == 0
    assert found["parameters"]["ratio"] == 1
    assert found["copies"]["reached"]["channels"] == 0


def test_data_comes_from_arrays_in_files(tmp_path: Path) -> None:
    held = digits_data()
    pictures, labels = held.held_out_images.numpy(), held.held_out_labels.numpy()
    (tmp_path / "parts").mkdir()
    np.savez(tmp_path / "whole.npz", images=pictures, labels=labels)
    np.savez(tmp_path / "parts" / "a.npz", images=pictures[:200], labels=labels[:200])
    np.savez(tmp_path / "parts" / "b.npz", images=pictures[200:], labels=labels[200:])
    np.savez(tmp_path / "bad.npz", images=pictures, labels=labels[:5])
    sources = ["upscale:digits", *(str(tmp_path / n) for n in ("whole.npz", "parts", "bad.npz"))]
    grid = Grid({**DIGITS, "metric": "accuracy", "images": None, "data": sources})
    run(grid, tmp_path / "records.sqlite")
    *good, bad = read_records(tmp_path / "records.sqlite")
    assert len({str(record.result) for record in good}) == 1
    assert "it must be one label for each image" in (bad.error or "")


def _apart(one: Record, other: Record) -> bool:
    first, second = sorted((one, other), key=lambda record: record.begun)
    return first.begun + first.seconds <= second.begun


@pytest.mark.parametrize("on", ["local", "processes"])
def test_a_timed_cell_runs_while_nothing_else_does(on: str, tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"
    run(fakes.grid(tmp_path / "log", 6, ["timed", "quick"]), path, on=on, workers=3)
    records = read_records(path)
    timed = [record for record in records if record.cell.metric.endswith("timed")]
    assert len(timed) == 6
    for one in timed:
        assert all(_apart(one, other) for other in records if other is not one)
    others = [record for record in records if record not in timed]
    together = [not _apart(a, b) for a in others for b in others if a is not b]
    assert any(together) == (on == "processes"), "those that are not timed do run side by side"


def test_cores_are_one_cells_or_many_others() -> None:
    with holding("a test", shared=True):
        with holding("a test", shared=True) as also:
            assert also
        with holding("a test") as alone:
            assert not alone
    with holding("a test") as alone:
        assert alone


def test_a_run_leaves_torch_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(7)
    state, threads = torch.random.get_rng_state(), torch.get_num_threads()
    run(Grid({**DIGITS, "metric": "macs", "threads": 2}), tmp_path / "records.sqlite")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_two_sweeps_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite"

    def another(record: Record | None, pace: Pace) -> None:
        with pytest.raises(RecordsError, match="is being written by another sweep"):
            run(fakes.grid(tmp_path / "log", 1), path)

    run(fakes.grid(tmp_path / "log", 1), path, tell=another)


def test_records_are_never_written_into_a_strangers_file(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other.sqlite"
    text.write_text("something else, and longer than a header of SQLite's has to be\n" * 5)
    stranger = sqlite3.connect(other)
    stranger.execute("CREATE TABLE theirs (x)")
    stranger.close()
    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(RecordsError):
            Records(path)
        assert path.read_bytes() == before
    with pytest.raises(RecordsError, match="nothing has been measured yet"):
        read_records(tmp_path / "nowhere")


def test_a_result_is_not_overwritten_an_error_is(tmp_path: Path) -> None:
    cell = fakes.grid(tmp_path, 1).cells()[0]
    wrong = Record(cell, None, "wrong", None, 1.0, 1.0, {})
    first, second = (Record(cell, {"x": x}, None, None, 1.0, 1.0, {}) for x in (1, 2))
    with Records(tmp_path / "records.sqlite") as records:
        for record, left in ((wrong, wrong), (first, first), (second, first), (wrong, first)):
            records.add(record)
            assert records.read() == (left,)


def test_unknown_places_and_no_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="on is 'moon'; it must be one of local, processes, ray"):
        run(fakes.grid(tmp_path, 1), tmp_path / "r", on="moon")
    with pytest.raises(GridError, match="workers is 0"):
        run(fakes.grid(tmp_path, 1), tmp_path / "r", on="processes", workers=0)
