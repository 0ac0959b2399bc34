"""Input against output pruning, unconstrained: `python -m paper.input_output [--quick]`.

Top-1 against the share of parameters pruned, 0 to 100% in steps of 5%, without training, by every
criterion. The paper shows curves and gives no numbers: input pruning is ahead in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from paper.accuracy import curves, grids, panels
from paper.common import CRITERIA, STEPS, Found, measure, parse, table
from paper.drawing import draw
from paper.nets import images_of

AMOUNTS = (*STEPS[:-1:2], STEPS[-1])
SIDES = {"input": "input", "output": "output"}


def rows(found: Found) -> Iterator[Sequence[Any]]:
    """For each model and criterion the means over amounts that both sides have."""
    own = curves(found, "side")
    for model, criterion in dict.fromkeys((name, of) for name, of, _ in own):
        one, other = (own.get((model, criterion, side), {}) for side in SIDES)
        both = sorted({*one} & {*other})
        if both:
            means = [fmean(side[amount] for amount in both) for side in (one, other)]
            ahead = sum(one[amount] > other[amount] for amount in both)
            yield model, CRITERIA[criterion], *means, means[0] - means[1], f"{ahead} of {len(both)}"


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    found = measure(
        arguments, grids(arguments, amounts=AMOUNTS, constraints=["none"], sides=tuple(SIDES))
    )
    images = images_of(arguments)
    header = ["model", "criterion", "input, mean top-1", "output", "difference", "input ahead at"]
    print(f"Means over amounts, {images}.\n")
    print(table(header, rows(found)))
    draw(
        arguments.figures / "input_output.png",
        panels(found, "side", SIDES),
        x_label="parameters pruned, %",
        y_label=f"top-1, {images}, %",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
