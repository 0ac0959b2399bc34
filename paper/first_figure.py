"""Latency against sparsity, the first figure: `python -m paper.first_figure [--quick]`.

MobileNetV3-Small, shares of parameters up to 95% and beyond, every criterion of the paper: our
export, the baseline (channels in place) and the unpruned model in one race, traced. The paper's
baseline never gets below the unpruned model. Without ImageNet the weights are random, so that
criteria drop what a random draw would, and two stand for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from paper.common import (
    CRITERIA,
    PAPER_HARDWARE,
    STEPS,
    Found,
    amounts_of,
    by_criterion,
    criteria_of,
    hardware,
    measure,
    paper_number,
    paper_tables,
    parse,
    table,
)
from paper.drawing import COLOURS, OTHER, OURS, Line, Panel, draw
from upscale.sweep import Grid

MODEL = "mobilenet_v3_small"
EXPORTS = {"ours": "upscale", "baseline": "baseline"}
# Of a model that is not trained all criteria drop what a random draw would. Two stand for all: one
# that drops as much of every layer, and one that may drop more of some.
UNTRAINED = ("l2", "lamp")
STYLES = {"ours": OURS, "baseline": OTHER}


def grids(arguments: argparse.Namespace) -> list[Grid]:
    """One model, one race for each criterion and amount."""
    quick, trained = arguments.quick, arguments.imagenet is not None
    settings: dict[str, Any] = {
        "model": f"paper.imagenet:{MODEL}" if trained else f"torchvision:{MODEL}",
        "sample": "paper.imagenet:sample" if trained else "paper.imagenet:noise",
        "amount": amounts_of(arguments, STEPS[1:], quick=(0.05, 0.4, 0.95)),
        "of": "parameters",
        "metric": "race",
        "runtime": "torchscript",
        "runs": 5 if quick else 100,
    }
    criteria = criteria_of(arguments, quick=("l2",), full=CRITERIA if trained else UNTRAINED)
    return by_criterion(settings, criteria)


def rows(found: Found, tables: dict[str, Any]) -> Iterator[Sequence[Any]]:
    """For each criterion and amount: ours and the baseline, as measured here and in the paper."""
    for cell, result in sorted(found.items(), key=lambda own: (own[0].importance, own[0].amount)):
        row: list[Any] = [CRITERIA[cell.importance], f"{100 * cell.amount:g}"]
        for name, theirs in EXPORTS.items():
            quantity = f"latency_{theirs}_ms"
            paper = paper_number(tables, MODEL, cell.importance, quantity, cell.amount)
            row += [
                f"{result[f'{name}_ratio']:.3f}",
                f"{result[f'{name}_mean_ms']:.2f}",
                None if paper is None else f"{paper[0]:.2f}",
            ]
        yield row


def summary(found: Found) -> Iterator[str]:
    """From which amount on each export is faster than the unpruned model, by any criterion."""
    for name in EXPORTS:
        slower = [cell.amount for cell, own in found.items() if own[f"{name}_ratio"] >= 1]
        faster = [cell.amount for cell in found if cell.amount > max(slower, default=0.0)]
        told = "never below the unpruned model"
        if faster:
            told = f"below the unpruned model from {100 * min(faster):g}% on"
        least = min((own[f"{name}_ratio"] for own in found.values()), default=1.0)
        yield f"- {name}: {told}; at best {least:.2f} of its latency"


def panels(found: Found) -> list[Panel]:
    """Latency as a share of the unpruned model's, by share of parameters."""
    lines = []
    for colour, criterion in zip(COLOURS, CRITERIA, strict=False):
        own = {c.amount: result for c, result in found.items() if c.importance == criterion}
        for name, style in STYLES.items() if own else ():
            points = [(100 * amount, r[f"{name}_ratio"]) for amount, r in sorted(own.items())]
            lines.append(Line(f"{CRITERIA[criterion]}, {name}", points, style, colour))
    return [Panel(f"{MODEL}, batch 1", lines, level=1.0)]


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    print(f"Measured on {hardware(arguments, found)}; batch 1, one core, traced.\n")
    print("\n".join([*summary(found), ""]))
    header = ["criterion", "pruned, %"]
    for name in EXPORTS:
        header += [f"{name} ÷ unpruned", f"{name}, ms", f"ms, {PAPER_HARDWARE}"]
    print(table(header, rows(found, paper_tables(arguments))))
    draw(
        arguments.figures / "first_figure.png",
        panels(found),
        x_label="parameters pruned, %",
        y_label="latency ÷ unpruned",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
