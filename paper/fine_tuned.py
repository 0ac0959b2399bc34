"""Constraints after fine-tuning: `python -m paper.fine_tuned [--quick]`.

A DenseNet pruned by LAMP at 10 to 50% of the parameters, constrained and unconstrained, then
fine-tuned for five epochs (extra `tune`), with top-1 after each. On ImageNet it is DenseNet121, for
which the paper tells a gap of more than 5 points; on CIFAR-10 the small DenseNet, if it is trained,
or else the ResNet-20.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from paper.accuracy import CONSTRAINTS
from paper.common import Found, amounts_of, measure, name_of, paper_tables, parse, table
from paper.drawing import COLOURS, OTHER, OURS, Line, Panel, draw
from paper.nets import Net, images_of, nets
from paper.tradeoff import can_tune
from paper.tuning import PRESETS
from upscale.sweep import Grid

TUNED = "paper.tuning:five_epochs"


def subject(arguments: argparse.Namespace) -> Net:
    """The DenseNet that there is, or what else there is."""
    found = nets(arguments)
    return next((net for net in found if net.name.startswith("densenet")), found[0])


def grids(arguments: argparse.Namespace) -> list[Grid]:
    """Top-1 at once, and after every epoch."""
    preset = PRESETS["fine-tuning"]
    settings = {
        **subject(arguments).settings,
        "importance": preset.importance,
        "scope": preset.scope,
        "amount": amounts_of(arguments, preset.amounts, quick=(0.5,)),
        "of": "parameters",
        "constraint": list(CONSTRAINTS),
    }
    return [Grid({**settings, "metric": ["accuracy", TUNED] if can_tune() else "accuracy"})]


def rows(found: Found) -> Iterator[Sequence[Any]]:
    """A row for each amount and constraint: top-1 at once and after each epoch."""
    for cell, result in sorted(found.items(), key=lambda own: (own[0].amount, own[0].constraint)):
        if cell.metric != "accuracy":
            continue
        after = [
            epoch["top1_percent"]
            for other, own in found.items()
            if (other.metric, other.amount, other.constraint)
            == (TUNED, cell.amount, cell.constraint)
            for epoch in own["epochs"]
        ]
        kind, amount = CONSTRAINTS[cell.constraint], f"{100 * cell.amount:g}"
        filled = [*after, *[None] * (PRESETS["fine-tuning"].recipe.epochs - len(after))]
        yield name_of(cell), amount, kind, result["top1_percent"], *filled


def panels(found: Found) -> list[Panel]:
    """Top-1 at once, by epoch at the largest amount, and after the last epoch."""
    most = max((cell.amount for cell in found), default=0.0)
    kinds = dict(zip(CONSTRAINTS, ((OURS, COLOURS[0]), (OTHER, COLOURS[1])), strict=True))
    at_once, by_epoch, at_last = [], [], []
    for constraint, (style, colour) in kinds.items():
        label = CONSTRAINTS[constraint]
        own = {cell: result for cell, result in found.items() if cell.constraint == constraint}
        top1: dict[str, list[tuple[float, float | None]]] = {"accuracy": [], TUNED: []}
        for cell, result in own.items():
            top1[cell.metric].append((100 * cell.amount, result["top1_percent"]))
        curve = [
            (float(epoch["number"]), epoch["top1_percent"])
            for cell, result in own.items()
            if cell.metric == TUNED and cell.amount == most
            for epoch in result["epochs"]
        ]
        at_once.append(Line(label, sorted(top1["accuracy"]), style, colour))
        by_epoch.append(Line(label, curve, style, colour))
        at_last.append(Line(label, sorted(top1[TUNED]), style, colour))
    return [
        Panel("not fine-tuned, by parameters pruned, %", at_once),
        Panel(f"{100 * most:g}% pruned, by epoch", by_epoch),
        Panel("fine-tuned, by parameters pruned, %", at_last),
    ]


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    images = images_of(arguments)
    epochs = range(1, PRESETS["fine-tuning"].recipe.epochs + 1)
    header = ["model", "pruned, %", "constraint", f"top-1, {images}"]
    print(table([*header, *(f"epoch {number}" for number in epochs)], rows(found)))
    gap = paper_tables(arguments).get("headlines", {}).get("fine_tuned_gap_points")
    if gap is not None:
        print(f"\nThe paper, unconstrained minus constrained on ImageNet, points: {gap}")
    if not can_tune():
        print("\nNothing is fine-tuned: pip install upscale[tune]")
    draw(arguments.figures / "fine_tuned.png", panels(found), x_label="", y_label="top-1, %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
