"""Cells on processes of this machine; a process may die, the sweep goes on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from upscale.sweep.attempts import MOST_TRIES, attempt, lost
from upscale.sweep.cells import Cell
from upscale.sweep.jobs import Job, next_job
from upscale.sweep.records import Record
from upscale.sweep.trials import Memory

PATIENCE_S = 5.0


@dataclass(slots=True)
class _Worker:
    """A process, the pipe to it, and what it is at."""

    process: BaseProcess
    pipe: Connection[Any, Any]
    job: Job | None = None
    before: Cell | None = None

    def give(self, job: Job) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # if it is dead, its pipe says so too
            self.pipe.send((job.cell, job.attempts))

    def end(self) -> str:
        """End the process and say how it ended."""
        self.pipe.close()
        self.process.join(PATIENCE_S if self.job is None else 0)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        return f"by signal {-code}" if code < 0 else f"with status {code}"


def run_processes(cells: Sequence[Cell], workers: int) -> Iterator[Record]:
    """Measure cells, so many at a time; where a worker dies its cell is tried once more."""
    todo = deque(Job(cell) for cell in cells)
    crew: list[_Worker] = []
    try:
        while todo or any(worker.job for worker in crew):
            while todo and len(crew) < workers:
                crew.append(_hire())
            for worker in crew:
                if todo and worker.job is None:
                    worker.give(next_job(todo, worker.before))
            busy = {worker.pipe: worker for worker in crew if worker.job}
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]  # only pipes are waited for
                job = worker.job
                assert job is not None
                try:
                    record = worker.pipe.recv()
                except (EOFError, OSError):
                    crew.remove(worker)
                    how = worker.end()
                    if job.attempts < MOST_TRIES:
                        todo.appendleft(Job(job.cell, job.attempts + 1))
                    else:
                        yield lost(job.cell, how, job.attempts)
                else:
                    worker.job, worker.before = None, job.cell
                    yield record
    finally:
        for worker in crew:
            worker.end()


def _hire() -> _Worker:
    """A new process. A server that has torch loaded forks it, where there are such servers."""
    known = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if "forkserver" in known:
        context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()  # so that the worker's death closes the pipe
    return _Worker(process, ours)


def _work(pipe: Connection[Any, Any]) -> None:
    """Measure what comes through the pipe, until it or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, and ends its workers
    threading.Thread(target=_follow_the_parent, daemon=True).start()
    memory = Memory()
    while True:
        try:
            cell, attempts = pipe.recv()
            pipe.send(attempt(cell, memory, attempts))
        except (EOFError, OSError):
            return


def _follow_the_parent() -> None:
    """Die with the parent, however it died: nobody would take the record, and cores are wanted."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
