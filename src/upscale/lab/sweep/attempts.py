"""Attempts: which cell a worker should take next, and that one measured, come what may."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from upscale import __version__
from upscale.errors import UpscaleError
from upscale.lab.sweep.cells import STEPS, Cell, GridError
from upscale.lab.sweep.deadlines import TimedOut, deadline
from upscale.lab.sweep.locks import cores
from upscale.lab.sweep.metrics import Metric, metric_of
from upscale.lab.sweep.records import Record
from upscale.lab.sweep.trials import Memory, Trial
from upscale.tools.quiet import unwarned

LOOK_AHEAD = 64


@dataclass(slots=True)
class Job:
    """A cell, and the how-manieth attempt at it this is."""

    cell: Cell
    attempts: int = 1


def next_job(todo: deque[Job], before: Cell | None) -> Job:
    """The job that can use the most of what a worker still has from the cell before."""
    if before is None:
        return todo.popleft()
    ahead = range(min(LOOK_AHEAD, len(todo)))
    best = max(ahead, key=lambda place: (_in_common(todo[place].cell, before), -place))
    job = todo[best]
    del todo[best]
    return job


def _in_common(one: Cell, other: Cell) -> int:
    """How many steps of two trials are the same."""
    return sum(one.settings_of(step) == other.settings_of(step) for step in STEPS)


MOST_TRIES = 2
BEGUN, WAITING = "begun", "waiting"
LARGEST_SEED = 2**64 - 1

Note = Callable[[str], object]
Limit = Callable[[float], contextlib.AbstractContextManager[object]]


def attempt(
    job: Job, memory: Memory, *, note: Note = lambda what: None, limit: Limit = deadline
) -> Record:
    """Measure a cell; what goes wrong is recorded, and where.

    `note` is told when it begins and when it waits for the cores; `limit` holds it to its timeout.
    """
    cell, begun, start = job.cell, time.time(), time.perf_counter()
    try:
        note(BEGUN)
        metric = metric_of(cell.metric)
        with cores(alone=metric.alone, waiting=lambda: note(WAITING)):
            note(BEGUN)
            begun, start = time.time(), time.perf_counter()
            # Standard output is for what a program prints, and no place for what cells do.
            limited = limit(cell.timeout) if cell.timeout else contextlib.nullcontext()
            with contextlib.redirect_stdout(sys.stderr), _settings(cell), limited:
                result = _measured(metric, cell, memory)
            taken = time.perf_counter() - start
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit and whatever else ends one cell, not the sweep
        return failure(job, error, begun, time.perf_counter() - start)
    return Record(cell, result, None, None, begun, taken, place(), job.attempts)


def _measured(metric: Metric, cell: Cell, memory: Memory) -> Mapping[str, Any]:
    trial = Trial(cell, memory)
    with unwarned():
        result = dict(metric.measure(trial))
        found = {**result, "reached": trial.reached} if metric.selects else result
    # What is no JSON fails here, where its cell can be told, and not where records are written.
    text = json.dumps(found, default=_plain, ensure_ascii=False)
    whole = text.encode("utf-8", "replace")  # halves of characters cannot be written either
    # Infinities and what is no number are absent: JSON knows neither.
    plain: Mapping[str, Any] = json.loads(whole, parse_constant=lambda constant: None)
    return plain


def failure(job: Job, error: BaseException, begun: float, seconds: float) -> Record:
    """The record of a cell that went wrong. A user's mistake needs no trace."""
    try:
        told = f"{type(error).__name__}: {error}"
    except Exception:  # an error of the user's own class may fail to say what it is
        told = type(error).__name__
    expected = isinstance(error, (UpscaleError, TimedOut))
    trace = None if expected else _text("".join(traceback.format_exception(error)))
    return Record(job.cell, None, _text(told), trace, begun, seconds, place(), job.attempts)


def _text(said: str) -> str:
    """A text that can be written: what is no Unicode is spelt out."""
    return said.encode("utf-8", "backslashreplace").decode("utf-8")


def again_or_lost(job: Job, todo: deque[Job], how: str) -> Iterator[Record]:
    """What becomes of a cell whose worker died: one more attempt; after the last, a record."""
    if job.attempts < MOST_TRIES:
        todo.appendleft(Job(job.cell, job.attempts + 1))
    else:
        told = f"WorkerDied: its worker died {job.attempts} times, at last {how}"
        yield Record(job.cell, None, told, None, time.time(), 0.0, place(), job.attempts)


@contextlib.contextmanager
def _settings(cell: Cell) -> Iterator[None]:
    """The cell's threads and seed, denormals flushed; afterwards everything is as it was."""
    if cell.seed > LARGEST_SEED:
        raise GridError(f"seed is {cell.seed}; torch takes whole numbers up to {LARGEST_SEED}")
    threads = torch.get_num_threads()
    flushed = bool(torch.tensor(1e-310, dtype=torch.float64) * 1.0 == 0)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(cell.seed)
        torch.set_num_threads(cell.threads)
        torch.set_flush_denormal(True)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_flush_denormal(flushed)


def _plain(value: Any) -> Any:
    """A number of numpy's or torch's as Python's own."""
    if isinstance(value, (np.generic, torch.Tensor)):
        return value.item()
    raise TypeError(f"a metric gave a {type(value).__name__}; it must give numbers or text")


@cache
def place() -> Mapping[str, Any]:
    """What this process runs on; the machine by a digest of its name, not the name."""
    return {
        "machine": hashlib.sha256(platform.node().encode()).hexdigest()[:8],
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "upscale": __version__,
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
