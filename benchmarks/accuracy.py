"""What constraints cost: `python benchmarks/accuracy.py [--data DIR] [--images N] [--report]`.

`--unpruned --images 10000` measures the networks as they are, and nothing else.

Top-1 of trained CIFAR-10 ResNets after pruning, without training: five criteria, three
constraints, both sides, shares of parameters from 0 to 60%. Each result is a line of
`benchmarks/results/accuracy.jsonl`; results already there are not measured again, so a run that
was stopped goes on. `--report` writes `docs/accuracy.md` and, with matplotlib, its plots.

L1, L2, FPGM and HRank take the same share of every layer, as their papers do; LAMP, made to
compare layers, is global. HRank looks at 500 training images. Masked models are measured: exports
compute the same (`make test`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from cifar import trained
from data import DATA, images
from torch import Tensor, nn

import upscale
from upscale.selection.importance import Study, importance_of

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "accuracy.jsonl"
CRITERIA = ("l1", "l2", "lamp", "fpgm", "hrank")
SCOPES = {"lamp": "global"}
REGIMES = (
    ("input", "none"),
    ("input", "segment"),
    ("input", "contiguous"),
    ("output", "none"),
    ("output", "segment"),
)
SHARES = (0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50, 0.60)
SLACK = 0.1
# What accuracy is measured on; part of a cell, so that records of other data are not taken for it.
LOSSLESS = "CIFAR-10"
BATCH = 250
EXAMPLE = torch.zeros(1, 3, 32, 32)


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting."""

    model: str
    importance: str
    side: str
    constraint: str
    share: float
    images: int
    data: str = LOSSLESS


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured in a setting: top-1 in percent, and what the selection came to."""

    cell: Cell
    top1: float
    parameters: float
    copied_bytes: int | None
    seconds: float


def unpruned(depths: Sequence[int], count: int) -> Iterator[Cell]:
    """The networks as they are."""
    for depth in depths:
        yield Cell(f"ResNet-{depth}", "l1", "input", "none", 0.0, count)


def cells(depths: Sequence[int], count: int) -> Iterator[Cell]:
    """All settings, those that answer the first questions first."""
    yield from unpruned(depths, count)
    everything = [
        Cell(f"ResNet-{depth}", importance, side, constraint, share, count)
        for depth in depths
        for importance in CRITERIA
        for side, constraint in REGIMES
        for share in SHARES
    ]
    yield from sorted(
        everything, key=lambda c: (c.side == "output", c.share > 0.3, c.model != "ResNet-56")
    )


@dataclass
class Remembered:
    """A criterion that scores a model once: its scores do not depend on the amount."""

    name: str
    scores: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @property
    def comparable(self) -> bool:
        return importance_of(self.name).comparable

    def score(self, study: Study) -> dict[str, Tensor]:
        """The scores of a study, from memory if they were asked for before."""
        if study.side not in self.scores:
            self.scores[study.side] = importance_of(self.name).score(study)
        return self.scores[study.side]


def measure(
    cell: Cell,
    model: nn.Module,
    importance: Remembered,
    test: tuple[Tensor, Tensor],
    train: Tensor,
) -> Record:
    """Select, mask, and count right answers."""
    start = time.perf_counter()
    selection = upscale.select(
        model,
        EXAMPLE,
        amount=upscale.Parameters(cell.share),
        importance=importance,
        scope=SCOPES.get(cell.importance, "local"),
        side=cell.side,
        constraint=cell.constraint,
        slack=SLACK,
        data=train.split(BATCH),
    )
    copied = None
    if cell.side == "input":
        copied = upscale.plan(model, EXAMPLE, selection).copied_bytes
    reached = selection.reached.parameters if selection.reached else 0.0
    right = top1(upscale.mask(model, selection), *test)
    return Record(cell, right, reached, copied, time.perf_counter() - start)


def top1(model: nn.Module, pictures: Tensor, labels: Tensor) -> float:
    """The share of right answers, in percent."""
    model = model.to(memory_format=torch.channels_last)
    right = 0
    with torch.inference_mode():
        for batch, answers in zip(pictures.split(BATCH), labels.split(BATCH), strict=True):
            found = model(batch.contiguous(memory_format=torch.channels_last)).argmax(dim=1)
            right += int((found == answers).sum())
    return 100 * right / len(labels)


def load() -> dict[Cell, Record]:
    """The results so far."""
    found = {}
    if RECORDS.exists():
        for line in RECORDS.read_text().splitlines():
            entry = json.loads(line)
            cell = Cell(**entry.pop("cell"))
            found[cell] = Record(cell, **entry)
    return found


def recovered(records: dict[Cell, Record], model: str, count: int) -> tuple[float, int] | None:
    """The part of what `none` gains over `segment` that `contiguous` keeps, 5 to 30%."""
    gains: dict[str, list[float]] = {"none": [], "contiguous": []}
    settings = 0
    for importance in CRITERIA:
        for share in (s for s in SHARES if s <= 0.3):
            found = {
                constraint: records.get(Cell(model, importance, "input", constraint, share, count))
                for constraint in ("none", "segment", "contiguous")
            }
            if all(found.values()):
                settings += 1
                base = found["segment"].top1  # type: ignore[union-attr]
                for constraint, gain in gains.items():
                    gain.append(found[constraint].top1 - base)  # type: ignore[union-attr]
    if not settings:
        return None
    return sum(gains["contiguous"]) / sum(gains["none"]), settings


def report(records: dict[Cell, Record], count: int) -> str:
    """The tables in markdown, and what can be read off them."""
    done = {cell: r for cell, r in records.items() if (cell.images, cell.data) == (count, LOSSLESS)}
    lines = ["# What constraints cost", "", *HEADER.format(count=count).splitlines(), ""]
    models = sorted({cell.model for cell in done})
    for model in models:
        whole = done.get(Cell(model, "l1", "input", "none", 0.0, count))
        lines += [f"## {model}", ""]
        if whole:
            lines += [f"Unpruned: {whole.top1:.2f}.", ""]
        header = ["criterion", "side", "constraint", *(f"{share:.0%}" for share in SHARES)]
        lines += [
            " | ".join(["", *header, ""]).strip(),
            " | ".join(["", *["---"] * len(header), ""]).strip(),
        ]
        for importance in CRITERIA:
            for side, constraint in REGIMES:
                row = [
                    done.get(Cell(model, importance, side, constraint, share, count))
                    for share in SHARES
                ]
                cells_ = [f"{r.top1:.1f}" if r else "–" for r in row]
                if any(row):
                    lines.append(f"| {importance} | {side} | {constraint} | {' | '.join(cells_)} |")
        lines += ["", *findings(done, model, count), ""]
    return "\n".join(lines)


HEADER = """\
Written by `python benchmarks/accuracy.py --report` from `benchmarks/results/accuracy.jsonl`: top-1
in percent on {count} test images of CIFAR-10, after pruning the given share of the
weights of all convolutions and linears, without any training. `contiguous` has a slack of 10%.
L1, L2, FPGM and HRank take the same share of every layer, LAMP one threshold for all; HRank looks
at 500 training images. A dash is a setting not measured yet."""


def findings(done: dict[Cell, Record], model: str, count: int) -> list[str]:
    """Sentences that the numbers carry."""
    lines = []
    for side in ("input", "output"):
        gains = [
            (record.top1 - other.top1, cell)
            for cell, record in done.items()
            if cell.model == model and cell.side == side and cell.constraint == "none"
            if (other := done.get(Cell(model, cell.importance, side, "segment", cell.share, count)))
        ]
        if gains:
            wins = sum(gain > 0 for gain, _ in gains)
            worst, where = min(gains, key=lambda pair: pair[0])
            lines.append(
                f"- {side} side: `none` minus `segment` is {fmean(g for g, _ in gains):+.1f} "
                f"points on average over {len(gains)} settings; it is ahead in {wins}. At worst it "
                f"is {worst:+.1f} ({where.importance}, {where.share:.0%})."
            )
            for importance in CRITERIA:
                own = [gain for gain, cell in gains if cell.importance == importance]
                if own:
                    lines.append(f"  - {importance}: {fmean(own):+.1f} over {len(own)} shares")
    kept = recovered(done, model, count)
    if kept:
        lines.append(
            f"- `contiguous` keeps {kept[0]:.0%} of what `none` gains over `segment`, averaged "
            f"over {kept[1]} settings from 5 to 30%."
        )
    copied = [
        r.copied_bytes for c, r in done.items() if c.constraint == "contiguous" and c.model == model
    ]
    if copied:
        lines.append(f"- `contiguous` copies {max(b or 0 for b in copied)} bytes at most.")
    return lines


def line_of(
    records: dict[Cell, Record],
    model: str,
    importance: str,
    count: int,
    side: str,
    constraint: str,
) -> list[Record]:
    """What was measured for one line of a plot."""
    found = [records.get(Cell(model, importance, side, constraint, s, count)) for s in SHARES]
    return [record for record in found if record]


def plot(records: dict[Cell, Record], count: int, directory: Path) -> None:
    """Accuracy against sparsity, unconstrained minus constrained, input against output."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    colours = dict(
        zip(CRITERIA, ("#3b6ea8", "#c8553d", "#4f9d69", "#8e6bb0", "#b08d3c"), strict=True)
    )
    styles = {"none": "-", "segment": ":", "contiguous": "--"}
    for model in sorted({cell.model for cell in records}):
        figure, axes = pyplot.subplots(1, 3, figsize=(13, 4))
        for importance in CRITERIA:
            line = partial(line_of, records, model, importance, count)

            for constraint, style in styles.items():
                own = line("input", constraint)
                axes[0].plot(
                    [r.cell.share for r in own],
                    [r.top1 for r in own],
                    style,
                    color=colours[importance],
                    label=importance if constraint == "none" else None,
                )
            pairs = [
                (a, b)
                for a in line("input", "none")
                for b in line("input", "segment")
                if a.cell.share == b.cell.share
            ]
            axes[1].plot(
                [a.cell.share for a, _ in pairs],
                [a.top1 - b.top1 for a, b in pairs],
                color=colours[importance],
            )
            pairs = [
                (a, b)
                for a in line("input", "none")
                for b in line("output", "none")
                if a.cell.share == b.cell.share
            ]
            axes[2].plot(
                [a.cell.share for a, _ in pairs],
                [a.top1 - b.top1 for a, b in pairs],
                color=colours[importance],
            )
        titles = (
            "top-1: none (solid), contiguous (dashed), segment (dotted)",
            "input: none minus segment",
            "none: input minus output",
        )
        for axis, title in zip(axes, titles, strict=True):
            axis.set_title(f"{model}, {title}", fontsize=9)
            axis.set_xlabel("share of parameters pruned")
            axis.axhline(0, color="#999999", linewidth=0.5)
        axes[0].set_ylabel("percent")
        axes[0].legend(fontsize=8)
        figure.tight_layout()
        figure.savefig(directory / f"accuracy-{model.lower()}.png", dpi=110)
        pyplot.close(figure)


def main() -> int:
    """Measure what is missing; then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--images", type=int, default=1000, help="test images; 5000 is recorded")
    parser.add_argument("--depths", type=int, nargs="+", default=[56, 20])
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--unpruned", action="store_true", help="only the networks as they are")
    parser.add_argument("--part", default="1/1", help="of several processes, which one this is")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the report")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.report:
        run(arguments)
    records = load()
    text = report(records, arguments.images)
    if arguments.report:
        (ROOT / "docs" / "accuracy.md").write_text(text + "\n")
        plot(
            {
                cell: r
                for cell, r in records.items()
                if (cell.images, cell.data) == (arguments.images, LOSSLESS)
            },
            arguments.images,
            ROOT / "docs" / "images",
        )
    else:
        print(text)
    return 0


def run(arguments: argparse.Namespace) -> None:
    """Measure the settings that have no record yet."""
    part, parts = (int(number) for number in arguments.part.split("/"))
    test = images(arguments.data, "test", arguments.images)
    train, _ = images(arguments.data, "train", 500)
    models = {f"ResNet-{depth}": trained(depth, arguments.data) for depth in arguments.depths}
    criteria: dict[tuple[str, str], Remembered] = {}
    begun = time.monotonic()
    RECORDS.parent.mkdir(exist_ok=True)
    settings = unpruned if arguments.unpruned else cells
    todo = list(settings(arguments.depths, arguments.images))[part - 1 :: parts]
    for number, cell in enumerate(todo, start=1):
        if arguments.minutes and time.monotonic() - begun > 60 * arguments.minutes:
            break
        if cell in load():
            continue
        criterion = criteria.setdefault((cell.model, cell.importance), Remembered(cell.importance))
        record = measure(cell, models[cell.model], criterion, test, train)
        with RECORDS.open("a") as stream:
            stream.write(json.dumps(asdict(record)) + "\n")
        print(
            f"{number}/{len(todo)} {cell.model} {cell.importance} {cell.side} {cell.constraint} "
            f"{cell.share:.0%}: {record.top1:.2f} in {record.seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    raise SystemExit(main())
