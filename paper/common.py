"""What the scripts share: arguments, running a grid, criteria, the paper's numbers, and tables."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from paper import lossless
from upscale.cli.progress import Progress
from upscale.lab.sweep.running import PLACES, Pace
from upscale.sweep import Cell, Grid, Record, read_records, run

ROOT = Path(__file__).resolve().parent.parent
PAPER_HARDWARE = "paper, V100"
# The criteria of the paper, by what its tables call them.
CRITERIA = {"l1": "L1", "l2": "L2", "lamp": "LAMP", "fpgm": "FPGM", "hrank": "HRank"}
# The amounts of its tables, and those of its figures; not everything can go, so the last is less.
NEARLY_ALL = 0.999
AMOUNTS = (0.01, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40)
STEPS = (*(round(0.025 * step, 3) for step in range(40)), NEARLY_ALL)
# The models of its tables.
MODELS = (
    *("densenet121", "mnasnet0_75", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large"),
    *("mobilenet_v3_small", "resnet101", "resnet18", "resnet50", "squeezenet1_0", "squeezenet1_1"),
)

Found = dict[Cell, dict[str, Any]]


def parse(about: str | None) -> argparse.Namespace:
    """The arguments of a script."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few models and settings: minutes")
    parser.add_argument(
        "--records",
        type=Path,
        default=ROOT / "paper" / "records.sqlite",
        help="where results are kept; scripts that share settings measure them once",
    )
    parser.add_argument("--figures", type=Path, default=ROOT / "paper" / "figures")
    parser.add_argument(
        "--imagenet",
        type=Path,
        default=os.environ.get("UPSCALE_IMAGENET"),
        help="a folder with train/CLASS/* and val/CLASS/*; without it accuracy is CIFAR-10's",
    )
    parser.add_argument("--models", type=_names, metavar="A,B", help="only these of its models")
    parser.add_argument("--criteria", type=_names, metavar="A,B", help="only these")
    parser.add_argument("--amounts", type=_shares, metavar="A,B", help="these shares, such as 0.1")
    parser.add_argument(
        "--images",
        type=int,
        choices=lossless.TESTS,
        help="how many test images of CIFAR-10 accuracy is measured on",
    )
    parser.add_argument("--on", choices=PLACES, default="local")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--address")
    parser.add_argument(
        "--tables",
        type=Path,
        default=ROOT.parent / "shared" / "paper" / "tables.json",
        help="the paper's results as data; without them its columns stay empty",
    )
    arguments = parser.parse_args()
    if arguments.imagenet is not None:
        # Workers find the images by it.
        os.environ["UPSCALE_IMAGENET"] = str(arguments.imagenet)
    return arguments


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(share) for share in text.split(","))


def chosen(asked: Sequence[str] | None, there: Sequence[str], *, few: Sequence[str]) -> list[str]:
    """What was asked for of what there is, or a few of it if nothing was."""
    if asked is None:
        return list(few)
    found = [name for name in there if name in asked]
    if not found:
        raise SystemExit(f"There is no {' or '.join(asked)} here; there is {', '.join(there)}.")
    return found


def criteria_of(
    arguments: argparse.Namespace, *, quick: Sequence[str], full: Iterable[str] = CRITERIA
) -> list[str]:
    """The criteria to measure: those asked for, or a few where it is quick, or the full list."""
    return chosen(
        arguments.criteria, tuple(CRITERIA), few=tuple(quick if arguments.quick else full)
    )


def amounts_of(
    arguments: argparse.Namespace, every: Sequence[float], *, quick: Sequence[float]
) -> list[float]:
    """The amounts to measure: those asked for, or a few where it is quick, or every one."""
    return list(arguments.amounts or (quick if arguments.quick else every))


def by_criterion(settings: Mapping[str, Any], criteria: Iterable[str]) -> list[Grid]:
    """A grid for each criterion, in its scope: LAMP, made to compare layers, is global.

    What a criterion says of a model is remembered from one cell to the next, so cells that ask the
    same of it stay together.
    """
    scopes = {"lamp": "global"}
    return [
        Grid({**settings, "importance": name, "scope": scopes.get(name, "local")})
        for name in criteria
    ]


def measure(arguments: argparse.Namespace, grids: Sequence[Grid]) -> Found:
    """Run what has no record yet; the results of all cells that did not fail."""
    cells = tuple(dict.fromkeys(cell for grid in grids for cell in grid.cells()))
    arguments.records.parent.mkdir(parents=True, exist_ok=True)
    with Progress(len(cells)) as progress:

        def tell(record: Record | None, pace: Pace) -> None:
            if record is None:
                progress.skip(len(cells) - sum(pace.cells.values()))
            elif record.error is not None:
                progress.say(f"failed: {record.cell}: {record.error}")
            progress.step(str(pace))

        where = {name: getattr(arguments, name) for name in ("on", "workers", "address")}
        run(cells, arguments.records, tell=tell, **where)
    wanted = set(cells)
    return {
        record.cell: dict(record.result)
        for record in read_records(arguments.records)
        if record.cell in wanted and record.result is not None
    }


def hardware(arguments: argparse.Namespace, found: Found) -> str:
    """What these results were measured on."""
    places = (r.place for r in read_records(arguments.records) if r.cell in found)
    return "; ".join(
        dict.fromkeys(f"{p['processor']} ({p['instructions']}), torch {p['torch']}" for p in places)
    )


def name_of(cell: Cell) -> str:
    """The model's name, without where it comes from."""
    return cell.model.rpartition(":")[2]


def paper_tables(arguments: argparse.Namespace) -> dict[str, Any]:
    """The paper's numbers, or none."""
    if not arguments.tables.is_file():
        return {}
    found: dict[str, Any] = json.loads(arguments.tables.read_text())
    return found


def paper_number(
    tables: Mapping[str, Any], model: str, criterion: str, quantity: str, amount: float
) -> Any:
    """A number of the paper's result tables, or None where they have none."""
    own = tables.get("models", {}).get(model, {}).get(CRITERIA[criterion], {}).get(quantity, ())
    by_amount = dict(zip(tables.get("amounts_pct", ()), own, strict=False))
    return by_amount.get(round(100 * amount, 6))


def ahead(one: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> float | None:
    """How much higher one curve is than another, on average where the other's points lie.

    Between its own points a curve is a straight line, beyond them it is not known; None if that
    leaves nothing to compare.

    >>> ahead([(0.0, 10.0), (2.0, 30.0)], [(1.0, 15.0), (3.0, 0.0)])
    5.0
    """
    own = sorted(one)
    within = [(x, y) for x, y in other if own and own[0][0] <= x <= own[-1][0]]
    if not within:
        return None
    places, heights = [x for x, _ in own], [y for _, y in own]
    return fmean(float(np.interp(x, places, heights)) - y for x, y in within)


def signed(points: float | None) -> str | None:
    """A difference, with its sign."""
    return None if points is None else f"{points:+.1f}"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in markdown; what is absent is a dash."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_text(value) for value in line)} |" for line in lines)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
