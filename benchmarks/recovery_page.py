"""The page of what refitting brings back: tables and plots of the records of `recovery.py`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from pathlib import Path
from typing import Any

from benchmarks.recovery import CRITERIA, PARTS, Cell, Result, equal_to

ROOT = Path(__file__).resolve().parents[1]
PAGE, PLOT = ROOT / "docs" / "recovery.md", ROOT / "docs" / "images" / "recovery.png"
Found = Mapping[Cell, Result]

ABOUT = {
    "ladder": """## ResNet-56, every layer the same share

Columns are chosen freely for every layer, each losing the same share of them, so that the export is
left with the multiply-accumulates of the unpruned network divided by a number.""",
    "grid": """## Shares of weights

As pruned, renewed and refitted, by what is masked. The same share of weights leaves fewer
multiply-accumulates where all readers of a channel agree (`segment`), for then its producers shrink
as well. So each criterion has one more row: `none`, pruned to as many multiply-accumulates as the
export of `segment` has. That row and the one of `segment` can be compared.""",
    "images": """## How many images

ResNet-56 by L1 at a half more multiply-accumulates than are left, refitted on more and more
unlabelled images.""",
    "subjects": """## Other networks

The trained networks of `paper/`, 30% of weights, chosen by reconstruction. Asked is that at least
half of what is lost with renewed BatchNorms comes back.""",
    "imagenet": """## MobileNetV2 on ImageNet

Fitted on 500 images of 500 classes, tested on those of the 500 other classes, and the reverse;
counts of channels from the curves. The interval is of 95%, of the difference on equal images.""",
    "tuning": """## Against training with labels

30% of weights. Labels: SGD on augmented training images for as much processor time as the refit
took, its rate falling to nothing by then.""",
    "epoch": """## Against a whole epoch with labels

The same, with all 50,000 training images once.""",
}


def table(found: Found) -> str:
    """A row for each result."""
    head = "network pruned chosen constraint images unpruned as-pruned norms refitted lost"
    columns = [*head.replace("as-pruned", "as~pruned").split(), "MACs ÷", "seconds"]
    labelled = any(result.tuned is not None for result in found.values())
    columns += ["with labels", "seconds"] if labelled else []
    rows = [f"| {' | '.join(columns)} |".replace("~", " "), "| --- " * len(columns) + "|"]
    for c, r in found.items():
        top1 = [f"{own:.2f}" for own in (r.unpruned, r.pruned, r.norms, r.refitted)]
        chosen = c.importance if c.scope == "local" else f"{c.importance}, {c.scope}"
        setting = [c.network, f"{c.share:.1%} of {c.measure}", chosen, c.constraint, c.images]
        row = [*setting, *top1, f"{r.unpruned - r.refitted:.2f}", f"{1 / r.macs:.2f}"]
        row.append(f"{r.seconds:.0f}")
        if r.tuned is not None and r.tuned_seconds is not None:
            row += [f"{r.tuned:.2f}", f"{r.tuned_seconds:.0f}"]
        rows.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(rows)


def folds(found: Found) -> str:
    """Both folds of a setting together, with the interval of what was lost."""
    rows = ["| MACs gone | unpruned | refitted | lost | interval |", "| --- " * 5 + "|"]
    for share in sorted({cell.share for cell in found}):
        both = {c: r for c, r in found.items() if c.share == share}
        if {cell.fold for cell in both} != {0, 1}:
            continue
        n, lost, won = (
            sum(own)
            for own in zip(*((c.test, r.lost, r.won) for c, r in both.items()), strict=True)
        )
        unpruned, refitted = (
            sum(getattr(r, name) * c.test for c, r in both.items()) / n
            for name in ("unpruned", "refitted")
        )
        mean = 100 * (lost - won) / n
        around = 196 * sqrt(max(0.0, lost + won - (lost - won) ** 2 / n)) / n
        rows.append(
            f"| {share:.0%} | {unpruned:.1f} | {refitted:.1f} | {mean:.1f} "
            f"| {mean - around:.1f} to {mean + around:.1f} |"
        )
    return "\n".join(rows)


def pairs(found: Found) -> Iterator[tuple[Cell, Result, Result]]:
    """Each setting by `segment`, and free layers at the same multiply-accumulates."""
    for cell, result in found.items():
        free = found.get(equal_to(cell, result))
        if cell.constraint == "segment" and free is not None:
            yield cell, result, free


def equals(found: Found) -> str:
    """Free layers against `segment` at equal multiply-accumulates."""
    rows = ["| network | weights | chosen | MACs ÷ | segment | none |", "| --- " * 6 + "|"]
    rows += [
        f"| {c.network} | {c.share:.0%} | {c.importance} | {1 / s.macs:.2f}, {1 / free.macs:.2f} "
        f"| {s.refitted:.2f} | {free.refitted:.2f} |"
        for c, s, free in pairs(found)
    ]
    return "\n".join(rows)


def page(found: Found) -> str:
    """The page: each part that has results."""
    parts = [
        "# What refitting brings back\n\nTop-1 in percent after pruning without training: as "
        "pruned, with the statistics of BatchNorms renewed, and refitted by `upscale.recover` "
        "without labels. All 10,000 test images of CIFAR-10, and 1,024 training images to fit to, "
        "unless said. Multiply-accumulates (MACs) are those of the narrow export, not of the "
        "masks; seconds are processor time of one thread. Written by "
        "`python benchmarks/recovery.py --page` of what `python benchmarks/recovery.py` measured. "
        "How refitting works is in [its own page](recovering.md)."
    ]
    for part in PARTS:
        own = {cell: found[cell] for cell in in_order(found) if cell.part == part}
        if own:
            parts += [ABOUT[part], table(own)]
        if part == "grid" and any(pairs(own)):
            parts.append(equals(own))
        if part == "imagenet" and own:
            parts.append(folds(own))
    if PLOT.is_file():
        parts.append(f"![top-1 against multiply-accumulates, and images](images/{PLOT.name})")
    return "\n\n".join(parts) + "\n"


def in_order(cells: Iterable[Cell]) -> list[Cell]:
    """Settings as a reader would look for them, whichever was measured first."""
    return sorted(
        cells,
        key=lambda c: (c.network, c.importance, c.measure, c.share, c.constraint, c.images, c.fold),
    )


def draw(found: Found) -> None:
    """Top-1 against multiply-accumulates by constraint, and against images."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for importance, style in zip(CRITERIA, ("-", "--"), strict=True):
        for constraint, colour in (("none", "#3b6ea8"), ("segment", "#c8553d")):
            own = sorted(
                (r.macs, r.refitted)
                for c, r in found.items()
                if c.part in ("ladder", "grid") and c.network == "resnet56"
                if (c.importance, c.constraint) == (importance, constraint)
            )
            label = f"{constraint}, {importance}"
            left.plot(*_columns(own), style, marker=".", color=colour, label=label)
    left.set(xlabel="share of multiply-accumulates left", ylabel="top-1, percent")
    left.set_title("ResNet-56, refitted", fontsize=10)
    left.legend(fontsize=8)
    images = sorted((c.images, r.refitted) for c, r in found.items() if c.part == "images")
    right.plot(*_columns(images), marker=".", color="#3b6ea8")
    right.set(xscale="log", xlabel="unlabelled images", ylabel="top-1, percent")
    right.set_title("ResNet-56, by images", fontsize=10)
    figure.tight_layout()
    figure.savefig(PLOT, dpi=110)


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def write(found: Found) -> None:
    """Write the page and, where matplotlib is installed, its plot."""
    if importlib.util.find_spec("matplotlib") is not None:
        draw(found)
    PAGE.write_text(page(found), encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")
