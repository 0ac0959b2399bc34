"""The result tables: `python -m paper.tables [--quick]`.

For every model, criterion and amount of the paper's tables: mean ± standard deviation of 100 runs
of the traced model for ours, the baseline and zero-copy, the peak memory of one call by PyTorch's
profiler, and with `--imagenet` the accuracies. The paper's latency, of a GPU, stands beside ours;
the cells are those of `paper.latency`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paper import accuracy, latency
from paper.common import (
    AMOUNTS,
    CRITERIA,
    PAPER_HARDWARE,
    Found,
    hardware,
    measure,
    name_of,
    paper_number,
    paper_tables,
    parse,
    table,
)
from upscale.sweep import Grid


def grids(arguments: argparse.Namespace) -> list[Grid]:
    """The races, and with ImageNet the accuracies of the same settings."""
    found = latency.grids(arguments)
    if arguments.imagenet is not None:
        found += accuracy.grids(arguments, amounts=AMOUNTS)
    return found


def rows(found: Found, tables: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """A row for each setting and export."""
    top1 = {
        (cell.model, cell.importance, cell.amount, cell.constraint): result["top1_percent"]
        for cell, result in found.items()
        if cell.metric == "accuracy"
    }
    raced = ((cell, result) for cell, result in found.items() if cell.metric == "race")
    order = sorted(raced, key=lambda own: (own[0].model, own[0].importance, own[0].amount))
    for cell, result in order:
        name, whole = name_of(cell), result["unpruned_peak_bytes"]
        for export, theirs in latency.EXPORTS.items():
            quantity = f"latency_{theirs}_ms"
            paper = paper_number(tables, name, cell.importance, quantity, cell.amount)
            where = (cell.model, cell.importance, cell.amount)
            both = [top1.get((*where, constraint)) for constraint in accuracy.CONSTRAINTS]
            peak = result[f"{export}_peak_bytes"]
            yield (
                name,
                CRITERIA[cell.importance],
                f"{100 * cell.amount:g}",
                export.replace("_", "-"),
                _spread(result[f"{export}_mean_ms"], result[f"{export}_deviation_ms"]),
                None if paper is None else _spread(*paper),
                f"{peak / 1e6:.2f}",
                f"{whole / 1e6:.2f}",
                *(both if export == "ours" else (None, None)),
            )


def _spread(mean: float, deviation: float | None) -> str:
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.3f}"


def main() -> int:
    """Measure and print."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    print(f"Measured on {hardware(arguments, found)}; batch 1, one core, traced.\n")
    header = ["model", "criterion", "pruned, %", "export", "latency, ms", f"ms, {PAPER_HARDWARE}"]
    header += ["peak, MB", "unpruned peak, MB"]
    header += [f"top-1 {constraint}, ImageNet" for constraint in accuracy.CONSTRAINTS.values()]
    print(table(header, rows(found, paper_tables(arguments))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
