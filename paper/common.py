"""What the scripts share: arguments, running a grid, the paper's numbers, and tables."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from upscale.cli.progress import Progress
from upscale.sweep import Cell, Grid, Record, read_records, run
from upscale.sweep.pace import Pace
from upscale.sweep.running import PLACES

ROOT = Path(__file__).resolve().parent.parent
PAPER_HARDWARE = "paper, V100"

Found = dict[Cell, dict[str, Any]]


def parse(about: str | None, name: str) -> argparse.Namespace:
    """The arguments of a script."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few models and settings: minutes")
    parser.add_argument("--records", type=Path, default=ROOT / "paper" / f"{name}.sqlite")
    parser.add_argument("--on", choices=PLACES, default="local")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--address")
    parser.add_argument(
        "--tables",
        type=Path,
        default=ROOT.parent / "shared" / "paper" / "tables.json",
        help="the paper's results as data; without them its columns stay empty",
    )
    return parser.parse_args()


def measure(arguments: argparse.Namespace, grids: Sequence[Grid]) -> Found:
    """Run what has no record yet; the results of all cells that did not fail."""
    cells = tuple(dict.fromkeys(cell for grid in grids for cell in grid.cells()))
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


def hardware(arguments: argparse.Namespace) -> str:
    """What the records were measured on."""
    places = (record.place for record in read_records(arguments.records))
    return "; ".join(
        dict.fromkeys(f"{p['processor']} ({p['instructions']}), torch {p['torch']}" for p in places)
    )


def paper_tables(arguments: argparse.Namespace) -> dict[str, Any]:
    """The paper's numbers, or none."""
    if not arguments.tables.is_file():
        return {}
    found: dict[str, Any] = json.loads(arguments.tables.read_text())
    return found


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in markdown; what is absent is a dash."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_text(value) for value in line)} |" for line in lines)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if isinstance(value, float) else str(value)
