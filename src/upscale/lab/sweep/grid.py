"""Grids: every combination of some settings, as cells. No torch.

A grid file is YAML, read as data alone, or Python, run because its user named it.
"""

from __future__ import annotations

import difflib
import math
import runpy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from upscale.lab.sweep.cells import REQUIRED, SETTINGS, Cell, GridError, is_number
from upscale.tools.optional_packages import import_optional

MOST_CELLS = 1_000_000
RANGE = {"from", "to", "step"}


@dataclass(frozen=True, slots=True)
class Grid:
    """Settings with one or several values each; every combination is a cell.

    Names are those of `Cell`. Numbers may be a range, `{"from": 0, "to": 0.6, "step": 0.05}`,
    with both ends; `timeout` has one value. Windows (`contiguous`) are of the input side alone, so
    combinations of them with the output side are left out.

    >>> grid = Grid({"model": "upscale:digits", "amount": [0.1, 0.2], "metric": ["macs", "copies"]})
    >>> len(grid.cells())
    4
    """

    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.settings, Mapping):
            raise GridError(f"a grid is settings by name, not a {type(self.settings).__name__}")
        for name in self.settings:
            if name not in SETTINGS:
                near = difflib.get_close_matches(str(name), SETTINGS, 1)
                told = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(SETTINGS)}"
                raise GridError(f"there is no setting {name!r}; {told}")
        for name in REQUIRED:
            if name not in self.settings:
                raise GridError(f"the grid has no {name!r}; it needs {', '.join(REQUIRED)}")
        own = {name: _values(name, value) for name, value in self.settings.items()}
        object.__setattr__(self, "settings", own)
        self.cells()  # says at once what is wrong

    def cells(self) -> tuple[Cell, ...]:
        """The cells, each once, with those that share a model and a selection side by side."""
        if math.prod(len(values) for values in self.settings.values()) > MOST_CELLS:
            raise GridError(f"the grid has more than {MOST_CELLS:,} cells")
        # What is measured varies fastest: the model and its selection are then made once.
        last = ("method", "metric")
        order = (*(name for name in SETTINGS if name not in last), *last)
        names = [name for name in order if name in self.settings]
        every = product(*(self.settings[name] for name in names))
        cells = (Cell(**dict(zip(names, values, strict=True))).settled() for values in every)
        fit = (c for c in cells if c.constraint != "contiguous" or c.side != "output")
        return tuple(dict.fromkeys(fit))


def cells_of(given: Grid | Iterable[Grid | Cell]) -> tuple[Cell, ...]:
    """The cells of one grid or of several, each once."""
    several = (given,) if isinstance(given, Grid) else given
    cells = (own.cells() if isinstance(own, Grid) else (own.settled(),) for own in several)
    return tuple(dict.fromkeys(chain.from_iterable(cells)))


def _values(name: str, given: Any) -> tuple[Any, ...]:
    """The values of a setting, from one value, a list or a range."""
    if isinstance(given, Mapping):
        values: list[Any] = _range(name, given)
    elif name == "shape" and isinstance(given, list) and given and isinstance(given[0], int):
        values = [given]
    else:
        values = list(given) if isinstance(given, (list, tuple)) else [given]
    if not values:
        raise GridError(f"{name} has no value")
    if name == "timeout" and len(values) > 1:
        raise GridError("timeout has several values; it is the same for all cells of a grid")
    if name == "shape":
        values = [",".join(map(str, v)) if isinstance(v, (list, tuple)) else v for v in values]
    for value in values:
        if not isinstance(value, (str, int, float, type(None))):
            raise GridError(f"{name} is {value!r}; it must be a value or a list of values")
    return tuple(values)


def _range(name: str, given: Mapping[Any, Any]) -> list[float]:
    """All numbers of a range, both ends included, without the dust of binary fractions."""
    numbers = [given.get(part) for part in ("from", "to", "step")]
    if set(given) != RANGE or not all(map(is_number, numbers)):
        raise GridError(f"{name} is {dict(given)!r}; a range has from, to and step, all numbers")
    low, high, step = (float(n) for n in numbers if n is not None)
    if step <= 0 or high < low or (high - low) / step > MOST_CELLS:
        raise GridError(f"{name}: from {low:g} to {high:g} in steps of {step:g} is no range")
    return [round(low + turn * step, 9) for turn in range(int((high - low) / step + 1e-9) + 1)]


def read_grid(path: str | Path) -> tuple[Cell, ...]:
    """The cells of a grid file.

    A `.yaml` file holds the settings of a grid, or a list of several grids; a `.py` file defines
    `GRID`, a `Grid` or a list of them. Raises `GridError` that says what is wrong, and where.
    """
    path = Path(path)
    if not path.is_file():
        raise GridError(f"{path} is no file; give a grid as .yaml or .py")
    try:
        return cells_of(_from_python(path) if path.suffix == ".py" else _from_yaml(path))
    except GridError as error:
        raise GridError(f"{path}: {error}") from error


def _from_yaml(path: Path) -> list[Grid]:
    yaml = import_optional("yaml", "a grid in YAML needs PyYAML: pip install pyyaml")
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
