"""Accuracy against sparsity, constrained and unconstrained: `python -m paper.accuracy [--quick]`.

Top-1 after pruning 0 to 100% of the parameters in steps of 2.5%, without training, by every
criterion of the paper: the main figure and the grids of the appendix. With `--imagenet` the
paper's models and images, whose numbers then stand beside ours; else CIFAR-10's networks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from paper.common import (
    CRITERIA,
    STEPS,
    Found,
    amounts_of,
    by_criterion,
    criteria_of,
    measure,
    name_of,
    paper_number,
    paper_tables,
    parse,
    table,
)
from paper.drawing import COLOURS, OTHER, OURS, Line, Panel, draw
from paper.nets import images_of, nets
from upscale.sweep import Grid

QUICK = (0.1, 0.3)
CONSTRAINTS = {"none": "unconstrained", "segment": "constrained"}


def grids(
    arguments: argparse.Namespace,
    *,
    amounts: Sequence[float] = STEPS,
    constraints: Sequence[str] = tuple(CONSTRAINTS),
    sides: Sequence[str] = ("input",),
) -> list[Grid]:
    """Every network, criterion and amount; two amounts and two criteria where it is quick."""
    found = []
    for net, constraint, side in product(nets(arguments), constraints, sides):
        settings = {
            **net.settings,
            "amount": amounts_of(arguments, amounts, quick=QUICK),
            "of": "parameters",
            "constraint": constraint,
            "side": side,
            "metric": "accuracy",
        }
        found += by_criterion(settings, criteria_of(arguments, quick=("l1", "lamp")))
    return found


def curves(found: Found, setting: str) -> dict[tuple[str, str, str], dict[float, float]]:
    """Top-1 by amount, for each model, criterion and value of a setting."""
    curves: dict[tuple[str, str, str], dict[float, float]] = {}
    for cell, result in found.items():
        key = (name_of(cell), cell.importance, getattr(cell, setting))
        curves.setdefault(key, {})[cell.amount] = result["top1_percent"]
    return curves


def panels(found: Found, setting: str, values: dict[str, str]) -> list[Panel]:
    """A panel for each model, a colour for each criterion, a style for each value of a setting."""
    own = curves(found, setting)
    colours = dict(zip(CRITERIA, COLOURS, strict=False))
    styles = dict(zip(values, (OURS, OTHER), strict=True))
    return [
        Panel(
            model,
            [
                Line(
                    f"{CRITERIA[criterion]}, {values[value]}",
                    [(100 * amount, top1) for amount, top1 in sorted(curve.items())],
                    styles[value],
                    colours[criterion],
                )
                for (name, criterion, value), curve in own.items()
                if name == model
            ],
        )
        for model in dict.fromkeys(name for name, _, _ in own)
    ]


def paper_accuracy(
    tables: dict[str, Any], model: str, criterion: str, constraint: str, amount: float
) -> float | None:
    """The paper's, from its large tables or the one of EfficientNets."""
    name = CONSTRAINTS[constraint]
    found = paper_number(tables, model, criterion, f"accuracy_{name}_pct", amount)
    efficient = tables.get("efficientnet_lamp_accuracy_pct", {})
    if found is None and criterion == "lamp" and model in efficient:
        by_amount = dict(zip(efficient["amounts_pct"], efficient[model][name], strict=True))
        found = by_amount.get(round(100 * amount, 6))
    return None if found is None else float(found)


def rows(found: Found, tables: dict[str, Any]) -> Iterator[Sequence[Any]]:
    """A row for each model, criterion and amount."""
    own = curves(found, "constraint")
    for model, criterion in dict.fromkeys((name, of) for name, of, _ in own):
        free, bound = (own.get((model, criterion, value), {}) for value in CONSTRAINTS)
        for amount in sorted({*free, *bound}):
            paper = [paper_accuracy(tables, model, criterion, c, amount) for c in CONSTRAINTS]
            row = [model, CRITERIA[criterion], f"{100 * amount:g}"]
            yield [*row, free.get(amount), bound.get(amount), *paper]


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    images = images_of(arguments)
    header = ["model", "criterion", "pruned, %", *(f"{c}, {images}" for c in CONSTRAINTS.values())]
    header += [f"{constraint}, paper, ImageNet" for constraint in CONSTRAINTS.values()]
    print(table(header, rows(found, paper_tables(arguments))))
    draw(
        arguments.figures / "accuracy.png",
        panels(found, "constraint", CONSTRAINTS),
        x_label="parameters pruned, %",
        y_label=f"top-1, {images}, %",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
