"""Unconstrained minus constrained accuracy, by model: `python -m paper.gain_by_model [--quick]`.

The mean over criteria and amounts (0 to 100% of the parameters), in points of top-1, with the means
the paper gives for its models on ImageNet. The cells are those of `paper.accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from paper.accuracy import grids
from paper.common import measure, paper_tables, parse, table
from paper.drawing import draw_bars
from paper.headlines import accuracy_gains
from paper.nets import images_of

# The means that the text and its figure give.
PAPER = {
    "densenet121": "densenet121_mean_gain_points",
    "efficientnet_v2_s": "efficientnet_v2_gain_points",
    "resnet101": "resnet101_mean_gain_points",
    "resnet50": "resnet50_mean_gain_points",
    "resnet18": "resnet18_mean_gain_points",
}


def rows(gains: Mapping[str, list[float]], tables: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Model, our mean, the settings it is of, the largest gain of all, and the paper's mean."""
    told = tables.get("headlines", {})
    names = [*gains, *(name for name in PAPER if name not in gains and told)]
    found = []
    for name in names:
        own = gains.get(name, [])
        mean, most = (fmean(own), max(own)) if own else (None, None)
        found.append((name, mean, len(own), most, told.get(PAPER.get(name, ""))))
    return found


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    gains = accuracy_gains(measure(arguments, grids(arguments)))
    found = rows(gains, paper_tables(arguments))
    images = images_of(arguments)
    header = ["model", f"mean gain, points ({images})", "settings", "largest", "paper, ImageNet"]
    print(table(header, found))
    draw_bars(
        arguments.figures / "gain_by_model.png",
        [row[0] for row in found],
        {images: [row[1] for row in found], "paper, ImageNet": [row[4] for row in found]},
        y_label="unconstrained minus constrained, points",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
