"""Cells one after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from upscale.lab.sweep.attempts import Note, attempt
from upscale.lab.sweep.cells import Cell
from upscale.lab.sweep.records import Record
from upscale.lab.sweep.trials import Memory


def run_here(cells: Sequence[Cell], note: Note) -> Iterator[Record]:
    """Measure cells in their order."""
    memory = Memory()
    for cell in cells:
        yield attempt(cell, memory, note=note)
