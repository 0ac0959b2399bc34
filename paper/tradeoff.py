"""Accuracy against MACs and latency, single-branch and all: `python -m paper.tradeoff [--quick]`.

Pruning by L2, of channels in single-branch segments alone and of channels in all of them: top-1
as it is and, of the models that the paper fine-tunes or their small kin, after one epoch of
fine-tuning (extra `tune`; left out where it is not installed), against the multiply-accumulates and
the latency of the traced export. Amounts are shares of all channels that layers read, as in the
paper, so that single-branch segments have to give a larger share of theirs, and from some amount on
all that they have. The paper's numbers, of ImageNet, stand beside those of the same model.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import torch

import upscale
from paper.common import (
    NEARLY_ALL,
    Found,
    ahead,
    amounts_of,
    hardware,
    measure,
    name_of,
    paper_tables,
    parse,
    signed,
    table,
)
from paper.drawing import COLOURS, OTHER, OURS, Line, Panel, draw
from paper.nets import images_of, nets
from upscale.lab.sources import find_model
from upscale.sweep import Grid

AMOUNTS = (0.01, 0.05, 0.10, 0.20, 0.30)
TUNED_AMOUNTS = tuple(round(0.1 * step, 1) for step in range(1, 10))
TUNED = "paper.tuning:one_epoch"
SEGMENTS = {"single-branch": "single_branch", "all": "all"}
# What the paper calls torchvision's models here.
PAPER_NAMES = {
    "resnet18": "ResNet18",
    "mobilenet_v3_small": "MobileNetV3-Small",
    "mobilenet_v3_large": "MobileNetV3-Large",
    "efficientnet_v2_s": "EfficientNetV2-Small",
}
TUNED_MODELS = (*PAPER_NAMES, "resnet20", "mobilenet_v3")

Points = dict[tuple[str, str, float], dict[str, float]]
Curve = list[tuple[float, float]]
Parts = Mapping[str, Mapping[str, float]]


def can_tune() -> bool:
    """Whether there is what fine-tuning needs."""
    return importlib.util.find_spec("accelerate") is not None


def grids(arguments: argparse.Namespace) -> list[Grid]:
    """Accuracy, MACs and latency of the same selections, and accuracy after an epoch."""
    tuned = amounts_of(arguments, TUNED_AMOUNTS, quick=(0.3,))
    found = []
    for net in nets(arguments):
        for segments, part in parts(net.untrained, net.shape).items():
            own = {**net.settings, "segments": segments}
            settings = {**own, "amount": _distinct(amounts(arguments), part)}
            timed = {"metric": "latency", "runtime": "torchscript"}
            found += [
                Grid({**settings, "metric": ["accuracy", "macs"]}),
                Grid({**settings, **timed, "runs": 5 if arguments.quick else 100}),
            ]
            if can_tune() and net.name in TUNED_MODELS:
                found.append(Grid({**own, "amount": _distinct(tuned, part), "metric": TUNED}))
    return found


def amounts(arguments: argparse.Namespace) -> list[float]:
    """Shares of all channels."""
    return amounts_of(arguments, sorted({*AMOUNTS, *TUNED_AMOUNTS}), quick=(0.1, 0.3))


@cache
def parts(model: str, shape: str) -> dict[str, float]:
    """The share of all channels that each kind of segments has."""
    network, sizes = find_model(model, None), [int(size) for size in shape.split(",")]
    counts = {}
    for segments in SEGMENTS:
        found = upscale.select(network, torch.zeros(sizes), amount=0, segments=segments).reached
        counts[segments] = 0 if found is None else sum(found.widths.values())
    return {segments: count / counts["all"] for segments, count in counts.items() if count}


def asked(amount: float, part: float) -> float:
    """What to ask of segments with a part of the channels for an amount of all of them."""
    return round(min(amount / part, NEARLY_ALL), 9)


def _distinct(amounts: Sequence[float], part: float) -> list[float]:
    return list(dict.fromkeys(asked(amount, part) for amount in amounts))


def points(found: Found) -> Points:
    """What was measured of each model, kind of segments and amount asked of them."""
    points: Points = {}
    for cell, result in found.items():
        own = points.setdefault((name_of(cell), cell.segments, cell.amount), {})
        if cell.metric == "macs":
            own["gmacs"] = result["exported"] / 1e9
        elif cell.metric == "latency":
            own["ms"], own["ratio"] = result["exported_ms"], result["ratio"]
        else:
            own["tuned" if cell.metric == TUNED else "top1"] = result["top1_percent"]
    return points


def paper_point(
    tables: Mapping[str, Any], model: str, segments: str, amount: float, *, tuned: bool
) -> tuple[float | None, float | None]:
    """The paper's accuracy and 10⁹ operations, with or without fine-tuning."""
    held = tables.get("fine_tuned_1_epoch_l2" if tuned else "not_fine_tuned_l2", {})
    own = held.get("models", {}).get(PAPER_NAMES.get(model), {}).get(SEGMENTS[segments])
    percents = held.get("amounts_pct" if tuned else "amounts_pct_of_channels", [])
    percent = round(100 * amount, 6)
    if own is None or percent not in percents:
        return None, None
    place = percents.index(percent)
    return own["accuracy_pct"][place], own["gflops"][place]


def rows(
    found: Found, amounts: Sequence[float], parts: Parts, tables: Mapping[str, Any]
) -> Iterator[Sequence[Any]]:
    """A row for each model, kind of segments and share of all channels."""
    measured = points(found)
    for model, own_parts in parts.items():
        for (segments, part), amount in product(own_parts.items(), amounts):
            own = measured.get((model, segments, asked(amount, part)), {})
            row: list[Any] = [model, segments, f"{100 * amount:g}"]
            row += [_digits(own.get("gmacs"), 4), _digits(own.get("ms"), 2), own.get("top1")]
            plain = paper_point(tables, model, segments, amount, tuned=False)
            tuned = paper_point(tables, model, segments, amount, tuned=True)
            yield [*row, *plain, own.get("tuned"), *tuned]


def curve(own: Points, model: str, segments: str, across: str, height: str) -> Curve:
    """What was measured of a model's segments, as points of a plane."""
    return [
        (point[across], point[height])
        for (name, kind, _), point in sorted(own.items())
        if (name, kind) == (model, segments) and across in point and height in point
    ]


def panels(found: Found, across: str, *, tuned: bool) -> list[Panel]:
    """A panel for each model: accuracy by MACs (`gmacs`) or by latency (`ms`)."""
    own = points(found)
    height = "tuned" if tuned else "top1"
    styles = {"single-branch": (OTHER, COLOURS[0]), "all": (OURS, COLOURS[1])}
    panels = []
    for model in dict.fromkeys(name for name, _, _ in own):
        lines = [
            Line(segments, curve(own, model, segments, across, height), style, colour)
            for segments, (style, colour) in styles.items()
        ]
        title = f"{model}, {'one epoch of fine-tuning' if tuned else 'not fine-tuned'}"
        panels.append(Panel(title, lines))
    return panels


def gains(found: Found) -> Iterator[Sequence[Any]]:
    """For each model the points that all segments are ahead by at the same MACs and latency."""
    own = points(found)
    for model in dict.fromkeys(name for name, _, _ in own):
        row: list[Any] = [model]
        for height, across in product(("top1", "tuned"), ("gmacs", "ms")):
            every, single = (
                curve(own, model, of, across, height) for of in ("all", "single-branch")
            )
            row.append(signed(ahead(every, single)))
        yield row


def _digits(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def paper_rows(tables: Mapping[str, Any]) -> list[list[Any]]:
    """The paper's pairs of pruned models, those of single-branch segments and those of all."""
    return [
        [entry["model"], kind.replace("_", "-"), f"{own['latency_ms']:.2f}", own["accuracy_pct"]]
        for entry in tables.get("accuracy_vs_latency_fine_tuned", [])
        for pair in entry["pairs"]
        for kind, own in pair.items()
    ]


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    images = images_of(arguments)
    print(f"Measured on {hardware(arguments, found)}; batch 1, one core, traced.\n")
    header = ["model", "segments", "channels pruned, %", "GMACs", "ms", f"top-1, {images}"]
    header += ["paper, ImageNet", "paper, GFLOPs"]
    header += [f"tuned 1 epoch, {images}", "paper, ImageNet", "paper, GFLOPs"]
    own = {net.name: parts(net.untrained, net.shape) for net in nets(arguments)}
    print(table(header, rows(found, amounts(arguments), own, paper_tables(arguments))))
    print("\nAll segments minus single-branch ones, mean points of top-1 at the same cost:\n")
    header = ["model", "at the same MACs", "at the same latency"]
    print(table([*header, "tuned, MACs", "tuned, latency"], gains(found)))
    theirs = paper_rows(paper_tables(arguments))
    if theirs:
        print("\nThe paper, fine-tuned, at like accuracy; ImageNet, V100:\n")
        print(table(["model", "segments", "latency, ms", "top-1, %"], theirs))
    if not can_tune():
        print("\nNothing is fine-tuned: pip install upscale[tune]")
    for across, label in (("gmacs", "10⁹ multiply-accumulates"), ("ms", "latency, ms")):
        both = [p for tuned in (False, True) for p in panels(found, across, tuned=tuned)]
        draw(
            arguments.figures / f"tradeoff_{across}.png",
            [panel for panel in both if any(line.points for line in panel.lines)],
            x_label=label,
            y_label=f"top-1, {images}, %",
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
