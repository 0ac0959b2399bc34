"""Metrics that cost nothing and leave a trace in the file that a cell's `data` names."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from upscale.sweep import Grid, Metric, Trial


def grid(log: Path, cells: int, metric: str | list[str] = "quick", **settings: Any) -> Grid:
    """A grid of cells that only their seeds tell apart; no model is ever made."""
    names = [metric] if isinstance(metric, str) else metric
    paths = [f"tests.lab.sweep.fakes:{name}" for name in names]
    own = {"model": "none", "amount": 0, "data": str(log), "seed": list(range(cells))}
    return Grid({**own, "metric": paths, **settings})


def _note(trial: Trial) -> None:
    """Say that a cell is being measured, and by whom."""
    assert trial.cell.data is not None
    handle = os.open(trial.cell.data, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{trial.cell.key} {os.getpid()}\n".encode())
    os.close(handle)


def _quick(trial: Trial) -> dict[str, Any]:
    _note(trial)
    time.sleep(0.03)
    return {"double": 2 * trial.cell.seed}


def _fails(trial: Trial) -> dict[str, Any]:
    _note(trial)
    if trial.cell.seed % 2:
        raise ZeroDivisionError("odd")
    return {"double": 2 * trial.cell.seed}


def _gives_no_json(trial: Trial) -> dict[str, Any]:
    return {"object": object()}


def _dies_once(trial: Trial) -> dict[str, Any]:
    assert trial.cell.data is not None
    known = Path(trial.cell.data).read_text() if Path(trial.cell.data).exists() else ""
    _note(trial)
    if trial.cell.seed == 1 and trial.cell.key not in known:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"double": 2 * trial.cell.seed}


def _dies(trial: Trial) -> dict[str, Any]:
    if trial.cell.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"double": 2 * trial.cell.seed}


def _waits(trial: Trial) -> dict[str, Any]:
    _note(trial)
    time.sleep(60)
    return {}


def _awaits_its_end_once(trial: Trial) -> dict[str, Any]:
    """The first attempt at a cell waits for somebody to end it; the next one does not."""
    assert trial.cell.data is not None
    known = Path(trial.cell.data).read_text() if Path(trial.cell.data).exists() else ""
    _note(trial)
    if trial.cell.seed == 0 and trial.cell.key not in known:
        time.sleep(60)
    time.sleep(0.03)
    return {"double": 2 * trial.cell.seed}


def _on_odd_seeds(act: Callable[[], object]) -> Metric:
    """A metric that does something to cells of odd seeds, and measures the others."""

    def measure(trial: Trial) -> dict[str, Any]:
        _note(trial)
        if trial.cell.seed % 2:
            act()
        return {"double": 2 * trial.cell.seed}

    return Metric(measure, selects=False)


def _print_bytes() -> None:
    sys.stdout.buffer.write(b"\xff\xfe\n")
    sys.stdout.flush()
    os.write(1, b"\xff\xfe\n")
    print("\udcff")
    raise OSError("no such file: \udcff")


class _Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("it will not say")


def _raise(error: BaseException) -> None:
    raise error


def _spin() -> None:
    while True:
        with contextlib.suppress(Exception):
            time.sleep(0.01)


def _hang_with_a_child() -> None:
    subprocess.run(["sleep", "61.19"], check=False)


def _hang_in_native_code() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # as good as a call that never ends
    time.sleep(60)


exits = _on_odd_seeds(lambda: sys.exit(0))
prints_bytes = _on_odd_seeds(_print_bytes)
gives_half_a_character = Metric(lambda trial: {"said": "\udcff"}, selects=False)
will_not_say = _on_odd_seeds(lambda: _raise(_Silent()))
ends_as_a_generator = _on_odd_seeds(lambda: _raise(GeneratorExit()))
spins = _on_odd_seeds(_spin)
hangs_with_a_child = _on_odd_seeds(_hang_with_a_child)
hangs_in_native_code = _on_odd_seeds(_hang_in_native_code)
stops = _on_odd_seeds(lambda: os.kill(os.getpid(), signal.SIGSTOP))
killed = _on_odd_seeds(lambda: os.kill(os.getpid(), signal.SIGKILL))
quick = Metric(_quick, selects=False)
timed = Metric(_quick, alone=True, selects=False)
fails = Metric(_fails, selects=False)
gives_no_json = Metric(_gives_no_json, selects=False)
dies_once = Metric(_dies_once, selects=False)
dies = Metric(_dies, selects=False)
waits = Metric(_waits, selects=False)
awaits_its_end_once = Metric(_awaits_its_end_once, selects=False)
