"""The headline aggregates: `python -m paper.headlines [--quick]`.

What unconstrained pruning gains in accuracy over constrained, and what our export saves in latency
against the baseline (channels in place), averaged as the paper averages: over models, criteria and
the amounts of its tables. Its averages are taken anew from its tables. Its accuracy is ImageNet's,
ours that of CIFAR-10 networks unless `--imagenet` is given, and its latency is a GPU's: the columns
stand side by side and mean different things. The cells are those of `paper.tables`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from paper import accuracy, latency
from paper.common import (
    AMOUNTS,
    PAPER_HARDWARE,
    Found,
    hardware,
    measure,
    name_of,
    paper_tables,
    parse,
    table,
)
from paper.nets import images_of
from upscale.sweep import Grid

Gains = Mapping[str, list[float]]


def grids(arguments: argparse.Namespace) -> list[Grid]:
    """Accuracy of trained networks, latency of the paper's."""
    return [*accuracy.grids(arguments, amounts=AMOUNTS), *latency.grids(arguments)]


def accuracy_gains(found: Found, within: tuple[float, float] = (0, 1)) -> Gains:
    """Points of accuracy that unconstrained is ahead by, for each model; at amounts in a range."""
    least, most = within
    gains: dict[str, list[float]] = defaultdict(list)
    for cell, result in found.items():
        free = cell.metric == "accuracy" and cell.constraint == "none"
        other = found.get(replace(cell, constraint="segment"))
        if free and other and least <= cell.amount <= most:
            gains[name_of(cell)].append(result["top1_percent"] - other["top1_percent"])
    return gains


def latency_savings(found: Found) -> Gains:
    """What our export takes less than the baseline, in percent, for each model."""
    savings: dict[str, list[float]] = defaultdict(list)
    for cell, result in found.items():
        if cell.metric == "race":
            saved = 100 * (1 - result["ours_ratio"] / result["baseline_ratio"])
            savings[name_of(cell)].append(saved)
    return savings


def paper_gains(tables: Mapping[str, Any]) -> tuple[Gains, Gains]:
    """The same two of the paper's tables."""
    gains: dict[str, list[float]] = defaultdict(list)
    savings: dict[str, list[float]] = defaultdict(list)
    for model, criteria in tables.get("models", {}).items():
        for own in criteria.values():
            free, bound = own["accuracy_unconstrained_pct"], own["accuracy_constrained_pct"]
            gains[model] += [a - b for a, b in zip(free, bound, strict=True) if None not in (a, b)]
            ours, plain = own["latency_upscale_ms"], own["latency_baseline_ms"]
            savings[model] += [
                100 * (1 - a[0] / b[0])
                for a, b in zip(ours, plain, strict=True)
                if None not in (a, b)
            ]
    return gains, savings


def rows(ours: Gains, theirs: Gains) -> Iterable[tuple[Any, ...]]:
    """A row for each model, and the mean of all settings."""
    for name in sorted({*ours, *theirs}):
        yield (
            name,
            _mean([ours.get(name, [])]),
            len(ours.get(name, [])),
            _mean([theirs.get(name, [])]),
        )
    count = sum(len(own) for own in ours.values())
    yield "all", _mean(ours.values()), count, _mean(theirs.values())


def _mean(lists: Iterable[list[float]]) -> float | None:
    values = [value for own in lists for value in own]
    return fmean(values) if values else None


def main() -> int:
    """Measure and print."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    gains, savings = paper_gains(paper_tables(arguments))
    print(f"Measured on {hardware(arguments, found)}; batch 1, one core, traced.\n")
    header = ["model", f"gain, points ({images_of(arguments)})", "settings", "paper, ImageNet"]
    print(table(header, rows(accuracy_gains(found), gains)))
    print()
    header = ["model", "latency saved against the baseline, %", "settings", PAPER_HARDWARE]
    print(table(header, rows(latency_savings(found), savings)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
