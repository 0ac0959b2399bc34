"""Grid files: YAML, read as data alone, or Python, run because its user named it."""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from upscale.lab.sweep.cells import Cell, GridError
from upscale.lab.sweep.grid import Grid, cells_of
from upscale.tools.optional_packages import MissingPackageError


def read_grid(path: str | Path) -> tuple[Cell, ...]:
    """The cells of a grid file.

    A `.yaml` file holds the settings of a grid, or a list of several grids; a `.py` file defines
    `GRID`, a `Grid` or a list of them. Raises `GridError` that says what is wrong, and where.
    """
    path = Path(path)
    if not path.is_file():
        raise GridError(f"{path} is no file; give a grid as .yaml or .py")
    try:
        found = _from_python(path) if path.suffix == ".py" else _from_yaml(path)
        return cells_of(found)
    except GridError as error:
        raise GridError(f"{path}: {error}") from error


def _from_yaml(path: Path) -> list[Grid]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingPackageError("a grid in YAML needs PyYAML: pip install pyyaml") from error
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        told = " ".join(str(error).split()) or type(error).__name__
        raise GridError(f"this is no YAML: {told}") from error
    return [Grid(settings) for settings in (found if isinstance(found, list) else [found])]


def _from_python(path: Path) -> list[Grid]:
    try:
        found = runpy.run_path(str(path)).get("GRID")
    except GridError:
        raise
    except (Exception, SystemExit) as error:  # it is the user's own code
        raise GridError(f"it does not run: {type(error).__name__}: {error}") from error
    given: list[Any] = list(found) if isinstance(found, Sequence) else [found]
    if not given or not all(isinstance(grid, Grid) for grid in given):
        raise GridError("it must define GRID, an upscale.lab.sweep.Grid or a list of them")
    return given
