"""Sweeps: grids of settings, measured once each, on one machine or many."""

from upscale.lab.sweep.cells import Cell, GridError
from upscale.lab.sweep.grid import Grid, read_grid
from upscale.lab.sweep.metrics import Metric
from upscale.lab.sweep.records import Record, RecordsError, as_csv, as_table, read_records
from upscale.lab.sweep.running import Summary, run
from upscale.lab.sweep.trials import Trial

__all__ = [
    "Cell",
    "Grid",
    "GridError",
    "Metric",
    "Record",
    "RecordsError",
    "Summary",
    "Trial",
    "as_csv",
    "as_table",
    "read_grid",
    "read_records",
    "run",
]
