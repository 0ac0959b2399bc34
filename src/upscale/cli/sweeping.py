"""`upscale sweep`: a grid of settings measured, or the records of one shown."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from upscale.cli.arguments import ArgumentsError
from upscale.cli.progress import Progress
from upscale.lab import sweep as lab
from upscale.lab.sweep.pace import Pace
from upscale.lab.sweep.tables import rows_of


def sweep(arguments: argparse.Namespace) -> int:
    """Measure what has no record yet, or show what has. The status is 1 if a cell failed."""
    if arguments.csv and not arguments.show:
        raise ArgumentsError("--csv is how --show prints: give both")
    if arguments.address is not None and arguments.on != "ray":
        raise ArgumentsError("--address is that of a Ray: give --on ray too")
    cells = lab.read_grid(arguments.grid)
    path = arguments.records or arguments.grid.with_suffix(".sqlite")
    if arguments.show:
        wanted = {cell.key for cell in cells}
        return _show(arguments, [r for r in lab.read_records(path) if r.cell.key in wanted])
    with Progress(len(cells), quiet=arguments.quiet) as progress:

        def tell(record: lab.Record | None, pace: Pace) -> None:
            if record is None:
                progress.skip(len(cells) - sum(pace.cells.values()))
            elif record.error is not None:
                progress.say(f"failed: {record.cell}: {record.error}")
            progress.step(str(pace))

        summary = lab.run(
            cells,
            path,
            on=arguments.on,
            workers=arguments.workers,
            address=arguments.address,
            retry=arguments.retry,
            timeout=arguments.timeout,
            tell=tell,
            say=progress.say,
        )
    told = (
        f"{summary.cells} cells: {summary.measured} measured now, {summary.before} recorded "
        f"before, {summary.failed} failed. Records: {path}"
    )
    print(json.dumps({**asdict(summary), "records": str(path)}) if arguments.json else told)
    return 1 if summary.failed else 0


def _show(arguments: argparse.Namespace, records: list[lab.Record]) -> int:
    if arguments.json:
        print(json.dumps(rows_of(records), indent=2))
    elif arguments.csv:
        print(lab.as_csv(records), end="")
    else:
        print(lab.as_table(records) if records else "No cell of this grid has a record yet.")
    return 0
