"""Cells on processes of this machine; a process may die, the sweep goes on."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from upscale.lab.sweep.attempts import BEGUN, Job, Note, again_or_lost, attempt, failure, next_job
from upscale.lab.sweep.cells import Cell
from upscale.lab.sweep.deadlines import TimedOut
from upscale.lab.sweep.records import Record
from upscale.lab.sweep.trials import Memory

PATIENCE_S = 5.0


@dataclass(slots=True)
class _Worker:
    """A process, the pipe to it, what it is at, and when that is due."""

    process: BaseProcess
    pipe: Connection[Any, Any]
    job: Job | None = None
    before: Cell | None = None
    due: float | None = None

    def give(self, job: Job) -> None:
        self.job, self.due = job, None
        with contextlib.suppress(OSError):  # if it is dead, its pipe says so too
            self.pipe.send(job)

    def take(self) -> Any:
        """What comes through the pipe: a record, or what the worker notes meanwhile."""
        given = self.pipe.recv()
        assert self.job is not None
        limit = self.job.cell.timeout
        self.due = time.monotonic() + limit if limit and given == BEGUN else None
        if isinstance(given, Record):
            self.job, self.before = None, given.cell
        return given

    def end(self) -> str:
        """End the process, with all that it began, and say how it ended."""
        self.pipe.close()
        self.process.join(PATIENCE_S if self.job is None else 0)
        if self.process.is_alive():
            self.process.kill()
        if self.process.pid is not None and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        code = self.process.exitcode or 0
        return f"by signal {-code}" if code < 0 else f"with status {code}"


def run_processes(cells: Sequence[Cell], note: Note, workers: int) -> Iterator[Record]:
    """Measure cells, so many at a time; where a worker dies its cell is tried once more.

    A worker whose cell takes longer than it may is killed.
    """
    todo = deque(Job(cell) for cell in cells)
    crew: list[_Worker] = []
    try:
        try:
            while todo or any(worker.job for worker in crew):
                while todo and len(crew) < workers:
                    crew.append(_hire())
                for worker in crew:
                    if todo and worker.job is None:
                        worker.give(next_job(todo, worker.before))
                yield from _received(crew, todo, note)
        finally:
            for worker in crew:
                worker.end()
    except KeyboardInterrupt:
        _end_server()
        raise


def _received(crew: list[_Worker], todo: deque[Job], note: Note) -> Iterator[Record]:
    """What the next workers to say something say; a worker that died or is late leaves the crew."""
    busy = {worker.pipe: (worker, worker.job) for worker in crew if worker.job}
    dues = [worker.due for worker, _ in busy.values() if worker.due is not None]
    patience = max(0.0, min(dues) - time.monotonic()) if dues else None
    for pipe in wait(list(busy), patience):
        worker, job = busy[pipe]  # type: ignore[index]  # only pipes are waited for
        try:
            given = worker.take()
        except (EOFError, OSError):
            crew.remove(worker)
            yield from again_or_lost(job, todo, worker.end())
        else:
            if isinstance(given, Record):
                yield given
            else:
                note(given)
    now = time.monotonic()
    for worker, job in busy.values():
        spent = job.cell.timeout
        if spent and worker in crew and worker.due is not None and worker.due <= now:
            crew.remove(worker)
            worker.end()
            yield failure(job, TimedOut(spent), time.time() - spent, spent)


def start_method() -> str:
    """How workers begin: forked by a server that has torch loaded, or afresh where none may be.

    Windows has no such servers, and on macOS what torch computes with does not survive a fork.
    """
    known = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in known and sys.platform != "darwin" else "spawn"


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """What is started within inherits it: interrupts are for this process alone."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hire() -> _Worker:
    """A new process."""
    context: Any = multiprocessing.get_context(start_method())
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    with _uninterrupted():
        if start_method() == "forkserver":
            context.set_forkserver_preload([__name__])
            _forkserver().ensure_running()
        process.start()
    theirs.close()  # so that the worker's death closes the pipe
    return _Worker(process, ours)


def _forkserver() -> Any:
    """Python's module of such servers, which not every system can load."""
    return importlib.import_module("multiprocessing.forkserver")


def _end_server() -> None:
    """End the server that forks workers: if it still loads torch, it would do so for seconds."""
    if start_method() != "forkserver":
        return
    server = getattr(getattr(_forkserver(), "_forkserver", None), "_forkserver_pid", None)
    if server is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def _work(pipe: Connection[Any, Any]) -> None:
    """Measure what comes through the pipe, until it or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends its workers
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # so that what cells start ends with their worker
    os.dup2(2, 1)  # what cells print is no result of the program's
    threading.Thread(target=_follow_the_parent, daemon=True).start()
    memory = Memory()
    while True:
        try:
            # The parent sees to it that a cell does not take too long.
            limit = contextlib.nullcontext
            pipe.send(attempt(pipe.recv(), memory, note=pipe.send, limit=limit))
        except (EOFError, OSError):
            return


def _follow_the_parent() -> None:
    """Die with the parent, however it died: nobody would take the record, and cores are wanted."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)  # with all that cells have started
        os._exit(1)
