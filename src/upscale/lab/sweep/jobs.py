"""Jobs: cells to be measured, and which of them a worker should take next."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import takewhile

from upscale.lab.sweep.cells import Cell

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
    """0: another model; then a step up for the same model, criterion and selection."""
    steps = (
        ("model", "weights", "seed"),
        ("importance", "sample", "side", "constraint", "segments", "shape"),
        ("amount", "of", "scope", "slack"),
    )
    alike = (all(getattr(one, name) == getattr(other, name) for name in names) for names in steps)
    return len(list(takewhile(bool, alike)))
