"""Sweeps: grids of settings, measured once each, on one machine or many."""

from upscale.sweep.cells import Cell, GridError
from upscale.sweep.files import read_grid
from upscale.sweep.grid import Grid
from upscale.sweep.metrics import Metric
from upscale.sweep.records import Record, RecordsError, read_records
from upscale.sweep.running import Summary, run
from upscale.sweep.tables import as_csv, as_table
from upscale.sweep.trials import Trial

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
