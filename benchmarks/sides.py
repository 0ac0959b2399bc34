"""Input against output pruning: `python benchmarks/sides.py [--data DIR] [--quick] [--write]`.

Trained CIFAR-10 ResNets lose shares of their parameters, least L2 norms first, every layer the
same share: either channels that layers read, or channels that they make, without constraints. The
unpruned model and both exports race in one loop on one core, traced and frozen by TorchScript.
Top-1 is what `benchmarks/accuracy.py` recorded for the same selections. `--write` writes
`docs/sides.md` and, with matplotlib, its plot.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import accuracy
import torch
from cifar import trained
from data import DATA
from latency import FORMATS, mean, scripted_like

import upscale
from upscale.targets.racing import race_models

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "sides.json"
DEPTHS = (56, 20)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
IMPORTANCE = "l2"
IMAGES = 5000
BATCH = 32
SIDES = {"input": "#3b6ea8", "output": "#c8553d"}


@dataclass(frozen=True, slots=True)
class Row:
    """One share of one model in one format: times over the unpruned model's, and top-1."""

    model: str
    format: str
    share: float
    input: float
    output: float
    copied_by_input: int
    copied_by_output: int
    top1_of_input: float | None
    top1_of_output: float | None


def rows(depths: Sequence[int], shares: Sequence[float], data: Path, runs: int) -> Iterator[Row]:
    """Race both sides of every share."""
    known = accuracy.load()
    for depth in depths:
        model, name = trained(depth, data), f"ResNet-{depth}"
        for title, memory in FORMATS.items():
            example = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=memory)
            for share in shares:
                plans = {
                    side: upscale.plan(
                        model,
                        example,
                        upscale.select(
                            model,
                            example,
                            amount=upscale.Parameters(share),
                            importance=IMPORTANCE,
                            side=side,
                        ),
                    )
                    for side in SIDES
                }
                models = {"unpruned": model}
                models |= {side: upscale.export(model, plan) for side, plan in plans.items()}
                raced = race_models(models, example, scripted_like(example), runs=runs)
                taken = {side: own.median_ms for side, own in raced.items()}
                top1 = {}
                for side in SIDES:
                    cell = accuracy.Cell(name, IMPORTANCE, side, "none", share, IMAGES)
                    top1[side] = known[cell].top1 if cell in known else None
                yield Row(
                    name,
                    title,
                    share,
                    **{side: taken[side] / taken["unpruned"] for side in SIDES},
                    copied_by_input=plans["input"].copied_bytes,
                    copied_by_output=plans["output"].copied_bytes,
                    top1_of_input=top1["input"],
                    top1_of_output=top1["output"],
                )


def as_table(found: Sequence[Row]) -> list[str]:
    """The rows in markdown."""
    lines = [
        "| model | format | share | input ÷ unpruned | output ÷ unpruned | input: MB copied "
        "| output: MB copied | input: top-1 | output: top-1 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in found:
        top1 = ("–" if t is None else f"{t:.1f}" for t in (row.top1_of_input, row.top1_of_output))
        copied = (f"{b / 1e6:.2f}" for b in (row.copied_by_input, row.copied_by_output))
        cells = (row.model, row.format, f"{row.share:.0%}", f"{row.input:.2f}", f"{row.output:.2f}")
        lines.append(f"| {' | '.join((*cells, *copied, *top1))} |")
    return lines


def page(found: Sequence[Row]) -> str:
    """The page for the docs."""
    lines = [
        "# Input against output pruning",
        "",
        f"Written by `python benchmarks/sides.py --write` on {datetime.date.today().isoformat()}, "
        f"torch {torch.__version__}, one core.",
        "Trained CIFAR-10 ResNets lose a share of their parameters, least L2 norms first, without",
        "constraints and without training: channels that layers read (*input*) or channels that",
        f"they make (*output*). Latencies are medians at batch {BATCH} over the unpruned model's",
        f"in the same race; top-1 is in percent of {IMAGES} test images ([accuracy](accuracy.md)).",
        "",
        "![input against output pruning](images/sides.png)",
        "",
        *as_table(found),
        "",
    ]
    for title in FORMATS:
        own = [row for row in found if row.format == title]
        ratio = mean(row.output / row.input for row in own)
        lines.append(
            f"- {title}: output pruning takes {ratio:.2f} of the time of input pruning, in the "
            f"geometric mean of {len(own)} races."
        )
    pairs = [
        row.top1_of_output - row.top1_of_input
        for row in found
        if row.format == "NCHW" and row.top1_of_output is not None and row.top1_of_input is not None
    ]
    if pairs:
        lines.append(
            f"- Top-1 of output pruning is {sum(pairs) / len(pairs):+.1f} points from that of "
            f"input pruning on average; ahead in {sum(p > 0 for p in pairs)} of "
            f"{len(pairs)} settings."
        )
    return "\n".join(lines) + "\n"


def plot(found: Sequence[Row], path: Path) -> None:
    """Top-1 and latency against the share, and against each other."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(len(DEPTHS), 3, figsize=(13, 7.5))
    for line, depth in zip(axes, DEPTHS, strict=True):
        name = f"ResNet-{depth}"
        for side, colour in SIDES.items():
            for title, style in zip(FORMATS, ("-", "--"), strict=True):
                own = [row for row in found if (row.model, row.format) == (name, title)]
                shares = [row.share for row in own]
                times = [getattr(row, side) for row in own]
                top1 = [getattr(row, f"top1_of_{side}") for row in own]
                label = f"{side}, {title}"
                if title == "NCHW":
                    line[0].plot(shares, top1, marker=".", color=colour, label=side)
                line[1].plot(shares, times, style, marker=".", color=colour, label=label)
                line[2].plot(times, top1, style, marker=".", color=colour, label=label)
        for axis, (below, beside) in zip(
            line,
            (
                ("share of parameters pruned", "top-1, percent"),
                ("share of parameters pruned", "latency ÷ unpruned"),
                ("latency ÷ unpruned", "top-1, percent"),
            ),
            strict=True,
        ):
            axis.set_title(name, fontsize=10)
            axis.set_xlabel(below)
            axis.set_ylabel(beside)
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Race; print, and write where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--quick", action="store_true", help="one model, two shares, few runs")
    parser.add_argument("--runs", type=int, default=20, help="runs behind each median")
    parser.add_argument("--write", action="store_true", help="write the page and the record")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    depths, shares = ((20,), SHARES[:2]) if arguments.quick else (DEPTHS, SHARES)
    found = []
    for row in rows(depths, shares, arguments.data, 5 if arguments.quick else arguments.runs):
        found.append(row)
        print(as_table([row])[-1], flush=True)
    print(page(found))
    if arguments.write:
        (ROOT / "docs" / "sides.md").write_text(page(found))
        RECORDS.write_text(json.dumps([asdict(row) for row in found], indent=1) + "\n")
        plot(found, ROOT / "docs" / "images" / "sides.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
