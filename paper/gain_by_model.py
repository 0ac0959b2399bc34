"""Unconstrained minus constrained accuracy, by model: `python -m paper.gain_by_model [--quick]`.

The mean over criteria and amounts (0 to 100% of the parameters, and of these 5 to 30%, where pruned
models are still of use), in points of top-1, with the means the paper gives for its models on
ImageNet. The cells are those of `paper.accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from paper.accuracy import grids
from paper.common import CRITERIA, Found, measure, name_of, paper_tables, parse, table
from paper.drawing import draw_bars
from paper.headlines import Gains, accuracy_gains
from paper.nets import images_of

# The means that the text and its figure give.
PAPER = {
    "densenet121": "densenet121_mean_gain_points",
    "efficientnet_v2_s": "efficientnet_v2_gain_points",
    "resnet101": "resnet101_mean_gain_points",
    "resnet50": "resnet50_mean_gain_points",
    "resnet18": "resnet18_mean_gain_points",
}
# Where models are pruned and still of use.
USEFUL = (0.05, 0.30)


def rows(gains: Gains, useful: Gains, tables: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Model; mean gain, settings and largest gain of all; the same where useful; the paper's."""
    told = tables.get("headlines", {})
    names = [*gains, *(name for name in PAPER if name not in gains and told)]
    found = []
    for name in names:
        row = [value for own in (gains, useful) for value in _summary(own.get(name, []))]
        found.append((name, *row, told.get(PAPER.get(name, ""))))
    return found


def by_criterion(found: Found) -> list[tuple[Any, ...]]:
    """Model, and the mean gain where useful by each criterion."""
    gains = {
        criterion: accuracy_gains(
            {cell: own for cell, own in found.items() if cell.importance == criterion},
            within=USEFUL,
        )
        for criterion in CRITERIA
    }
    models = dict.fromkeys(name_of(cell) for cell in found)
    return [
        (model, *(_summary(own.get(model, []))[0] for own in gains.values())) for model in models
    ]


def _summary(gains: list[float]) -> tuple[float | None, int, float | None]:
    if not gains:
        return None, 0, None
    return fmean(gains), len(gains), max(gains)


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    measured = measure(arguments, grids(arguments))
    gains, useful = accuracy_gains(measured), accuracy_gains(measured, within=USEFUL)
    found = rows(gains, useful, paper_tables(arguments))
    images = images_of(arguments)
    header = ["model", f"mean gain, points ({images})", "settings", "largest"]
    header += ["mean gain at 5 to 30%", "settings", "largest", "paper, ImageNet"]
    print(table(header, found))
    print("\nMean gain at 5 to 30%, by criterion:\n")
    print(table(["model", *CRITERIA.values()], by_criterion(measured)))
    draw_bars(
        arguments.figures / "gain_by_model.png",
        [row[0] for row in found],
        {
            images: [row[1] for row in found],
            f"{images}, 5 to 30%": [row[4] for row in found],
            "paper, ImageNet": [row[7] for row in found],
        },
        y_label="unconstrained minus constrained, points",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
