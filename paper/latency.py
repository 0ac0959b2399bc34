"""Latency of ours, the baseline and zero-copy: `python -m paper.latency [--quick]`.

The paper's models, every criterion (L2, where the models are not trained), the amounts of its
tables: all three exports and the unpruned model in one race, traced. Zero-copy is the bound on
what any order can save; its outputs are wrong. The table shows each model's means over criteria and
amounts, as shares of the baseline, so that ours can be held against the paper's GPU; `paper.tables`
prints every setting.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from paper.common import (
    AMOUNTS,
    CRITERIA,
    MODELS,
    PAPER_HARDWARE,
    Found,
    amounts_of,
    by_criterion,
    chosen,
    criteria_of,
    hardware,
    measure,
    name_of,
    paper_number,
    paper_tables,
    parse,
    table,
)
from paper.drawing import BOUND, COLOURS, OTHER, OURS, Line, Panel, draw
from upscale.sweep import Grid

EXPORTS = {"ours": "upscale", "baseline": "baseline", "zero_copy": "zero_copy"}
# Of a model that is not trained all criteria drop what a random draw would: one stands for all.
UNTRAINED = ("l2",)
STYLES = {"ours": OURS, "baseline": OTHER, "zero_copy": BOUND}


def grids(arguments: argparse.Namespace) -> list[Grid]:
    """A race for every model, criterion and amount."""
    quick, trained = arguments.quick, arguments.imagenet is not None
    names = chosen(arguments.models, MODELS, few=("squeezenet1_1",) if quick else MODELS)
    settings: dict[str, Any] = {
        "model": [f"paper.imagenet:{n}" if trained else f"torchvision:{n}" for n in names],
        "sample": "paper.imagenet:sample" if trained else "paper.imagenet:noise",
        "amount": amounts_of(arguments, AMOUNTS, quick=(0.10, 0.30)),
        "of": "parameters",
        "metric": "race",
        "runtime": "torchscript",
        "runs": 5 if quick else 100,
    }
    criteria = criteria_of(arguments, quick=("l1",), full=CRITERIA if trained else UNTRAINED)
    return by_criterion(settings, criteria)


def rows(found: Found, tables: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """For each model the means: ours and zero-copy by the baseline, here and in the paper."""
    ours: dict[str, list[list[float]]] = defaultdict(list)
    theirs: dict[str, list[list[float]]] = defaultdict(list)
    for cell, result in found.items():
        name = name_of(cell)
        ratios = [result[f"{own}_ratio"] for own in EXPORTS]
        ours[name].append([ratios[0] / ratios[1], ratios[2] / ratios[1], ratios[0], ratios[1]])
        paper = [
            paper_number(tables, name, cell.importance, f"latency_{own}_ms", cell.amount)
            for own in EXPORTS.values()
        ]
        if None not in paper:
            mine, plain, zero = (own[0] for own in paper)
            theirs[name].append([mine / plain, zero / plain])
    for name, values in ours.items():
        means = [f"{fmean(column):.3f}" for column in zip(*values, strict=True)]
        paper = [f"{fmean(column):.3f}" for column in zip(*theirs[name], strict=True)] or [None] * 2
        yield name, len(values), means[0], paper[0], means[1], paper[1], *means[2:]


def panels(found: Found) -> list[Panel]:
    """A panel for each model: latency as a share of the unpruned model's, by amount."""
    colours = dict(zip(CRITERIA, COLOURS, strict=False))
    panels = []
    for model in dict.fromkeys(name_of(cell) for cell in found):
        lines = []
        for criterion in CRITERIA:
            own = {
                cell.amount: result
                for cell, result in found.items()
                if name_of(cell) == model and cell.importance == criterion
            }
            for name, style in STYLES.items() if own else ():
                points = [(100 * amount, r[f"{name}_ratio"]) for amount, r in sorted(own.items())]
                label = f"{CRITERIA[criterion]}, {name.replace('_', '-')}"
                lines.append(Line(label, points, style, colours[criterion]))
        panels.append(Panel(model, lines, level=1.0))
    return panels


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    print(f"Measured on {hardware(arguments, found)}; batch 1, one core, traced.\n")
    header = ["model", "settings", "ours ÷ baseline", PAPER_HARDWARE]
    header += ["zero-copy ÷ baseline", PAPER_HARDWARE, "ours ÷ unpruned", "baseline ÷ unpruned"]
    print(table(header, rows(found, paper_tables(arguments))))
    draw(
        arguments.figures / "latency.png",
        panels(found),
        x_label="parameters pruned, %",
        y_label="latency ÷ unpruned",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
