"""Running a sweep: what has no record yet is measured, and recorded as soon as it is.

Its pace says how much is done, and how long the rest will take.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from upscale.lab.sweep import on_ray
from upscale.lab.sweep.attempts import WAITING, Job, Note, attempt
from upscale.lab.sweep.cells import Cell, GridError
from upscale.lab.sweep.deadlines import check_deadlines
from upscale.lab.sweep.grid import Grid, cells_of
from upscale.lab.sweep.locks import holding
from upscale.lab.sweep.metrics import metric_of
from upscale.lab.sweep.processes import run_processes
from upscale.lab.sweep.records import Record, Records, RecordsError
from upscale.lab.sweep.trials import Memory


@dataclass
class Pace:
    """Counts of cells, those that run alone apart from the others, and the seconds they took.

    >>> pace = Pace({False: 4, True: 1}, workers=2)
    >>> pace.left_seconds is None
    True
    >>> pace.count(alone=False, seconds=10.0, failed=False)
    >>> pace.left_seconds  # three cells on two workers, then one alone
    25.0
    """

    cells: dict[bool, int]
    workers: int = 1
    taken: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    failed: int = 0

    def count(self, *, alone: bool, seconds: float, failed: bool) -> None:
        """Take note of a cell that is finished."""
        self.taken[alone].append(seconds)
        self.failed += failed

    @property
    def finished(self) -> list[float]:
        """The seconds that each cell took that is finished."""
        return self.taken[False] + self.taken[True]

    @property
    def left_seconds(self) -> float | None:
        """What the cells left will take, if they take what those before did; None at first."""
        if not self.finished:
            return None
        left = {alone: cells - len(self.taken[alone]) for alone, cells in self.cells.items()}
        usual = {alone: fmean(own or self.finished) for alone, own in self.taken.items()}
        return left[False] * usual[False] / self.workers + left[True] * usual[True]

    def __str__(self) -> str:
        told = [f"{len(self.finished)} of {sum(self.cells.values())} cells"]
        if self.failed:
            told.append(f"{self.failed} failed")
        if self.left_seconds is not None:
            told.append(f"about {spell(self.left_seconds)} left")
        return ", ".join(told)


def spell(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> spell(7.2), spell(150), spell(9000)
    ('7 s', '2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


PLACES = ("local", "processes", "ray")

Cells = Sequence[Cell]
Tell = Callable[[Record | None, Pace], object]


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to: all cells, those recorded before, those measured now, those that fail."""

    cells: int
    before: int
    measured: int
    failed: int


def run(
    grid: Grid | Iterable[Grid | Cell],
    records: str | Path,
    *,
    on: str = "local",
    workers: int | None = None,
    address: str | None = None,
    retry: bool = False,
    timeout: float | None = None,
    tell: Tell | None = None,
    say: Callable[[str], object] | None = None,
) -> Summary:
    """Measure every cell that has no record yet; what is recorded is never measured again.

    Parameters
    ----------
    records
        The SQLite file that records go to, each as soon as its cell is finished.
    on
        `"local"`: in this process, one cell at a time. `"processes"`: on so many `workers` of
        this machine. `"ray"`: on the cluster at `address`, or on one started here.
        Cells that time something (`latency`) come last, and each has its machine to itself.
    retry
        Try cells again that failed before.
    timeout
        How many seconds a cell may take, instead of what the grid says; the wait for cores is not
        counted. A cell that takes longer fails. Where it runs on processes, its process is
        killed; here and on Ray, it is ended at its next step in Python.
    say
        Called with a line of text when a cell here, or on processes, has to wait for the cores.
    tell
        Called with nothing at first and then with every record, and with the pace so far.
    """
    cells = cells_of(grid)
    if timeout is not None:
        cells = tuple(replace(cell, timeout=timeout) for cell in cells)
    if on not in PLACES:
        raise GridError(f"on is {on!r}; it must be one of {', '.join(PLACES)}")
    if workers is not None and workers < 1:
        raise GridError(f"workers is {workers}; it must be a whole number >= 1")
    if on == "local" and any(cell.timeout is not None for cell in cells):
        check_deadlines()
    workers = (workers or usable_cores()) if on != "local" else 1
    name = hashlib.sha256(str(Path(records).resolve()).encode()).hexdigest()[:16]
    with holding(f"records-{name}") as ours, Records(records) as file:
        if not ours:
            raise RecordsError(f"{records} is being written by another sweep")
        skipped = file.keys(failed=not retry)
        todo = [cell for cell in cells if cell.key not in skipped]
        alone = frozenset(cell for cell in todo if _alone(cell))
        pace = Pace({False: len(todo) - len(alone), True: len(alone)}, workers)
        if tell is not None:
            tell(None, pace)
        others, timed = [c for c in todo if c not in alone], [c for c in todo if c in alone]

        def note(what: str) -> None:
            if say is not None and what == WAITING:
                say("waiting for the cores: another sweep on this machine has them")

        with closing(_measure(others, timed, on, workers, address, note)) as measured:
            for record in measured:
                file.add(record)
                failed = record.error is not None
                pace.count(alone=record.cell in alone, seconds=record.seconds, failed=failed)
                if tell is not None:
                    tell(record, pace)
        keys = {cell.key for cell in cells}
        failures = len(keys & (file.keys() - file.keys(failed=False)))
    return Summary(len(cells), len(cells) - len(todo), len(pace.finished), failures)


def _measure(
    others: Cells, timed: Cells, on: str, workers: int, address: str | None, note: Note
) -> Generator[Record, None, None]:
    """First all that can run side by side; when that is over, the rest one by one."""
    if on == "ray":
        yield from on_ray.run_ray(others, timed, address=address, workers=workers)
    elif on == "processes":
        yield from run_processes(others, note, workers)
        yield from run_processes(timed, note, workers=1)
    else:
        memory = Memory()
        for cell in (*others, *timed):
            yield attempt(Job(cell), memory, note=note)


def _alone(cell: Cell) -> bool:
    try:
        return metric_of(cell.metric).alone
    except (Exception, SystemExit):  # a module of the user's own may raise anything
        return False  # it fails when its turn comes, and is recorded then


def usable_cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
