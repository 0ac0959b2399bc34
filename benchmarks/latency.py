"""How fast exports run: `python benchmarks/latency.py [MODEL ...] [--quick] [--write]`.

For each model, format, amount and way of choosing channels four models race in one process, turn
by turn on one core: the unpruned one, our export, the paper's zero-copy reference (slices
wherever a reader's channels are apart: its numbers are wrong) and the plain gather export (order
`none`, the paper's baseline). All are traced and frozen by TorchScript, as the paper's are traced.
Times are medians; what counts are their ratios within a race.

Weights are random, BatchNorms calibrated, denormals flushed. Races already in
`benchmarks/results/latency.jsonl` are not run again, so a run that was stopped goes on; `--again
0.1` repeats those in which half of our times were further than a tenth apart, as they are where
other work disturbs. Of the same race run twice the steadier counts, whatever it showed.
`--write` makes `docs/latency.md` of them and, with matplotlib, its plot.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import math
import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from export import random_selection
from torch import Tensor, nn

import upscale
from upscale.capture import Example
from upscale.lab.zero_copy import wrong_numbers_zero_copy
from upscale.targets.racing import race_models
from upscale.targets.runtime import target_like
from upscale.zoo import torchvision_model

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "latency.jsonl"
PAPER = (
    *("densenet121", "mnasnet0_75", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large"),
    *("mobilenet_v3_small", "resnet101", "resnet18", "resnet50", "squeezenet1_0", "squeezenet1_1"),
)
MODELS = (*PAPER, "googlenet", "inception_v3", "efficientnet_b1", "efficientnet_v2_s")
BATCHED = ("densenet121", "mobilenet_v2", "resnet50", "squeezenet1_1")
FORMATS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
AMOUNTS = (0.10, 0.25, 0.50)
CHOICES = ("l2 global", "random", "contiguous")


@dataclass(frozen=True, slots=True)
class Cell:
    """One race."""

    model: str
    format: str
    choice: str
    amount: float
    batch: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a race showed: medians in milliseconds, what the plan copies, and where it was."""

    cell: Cell
    unpruned: float
    ours: float
    zero_copy: float
    gather: float
    spread: float
    copies: int
    copied_bytes: int
    parameters_left: float
    machine: str
    versions: str
    date: str


def cells(models: Iterable[str], amounts: Iterable[float], *, quick: bool) -> Iterator[Cell]:
    """The races, model by model."""
    for model in models:
        for memory in FORMATS:
            for amount in amounts:
                for choice in CHOICES:
                    yield Cell(model, memory, choice, amount, 1)
        for memory in FORMATS if model in BATCHED and not quick else ():
            for amount in amounts:
                yield Cell(model, memory, "random", amount, 8)


def prepared(name: str) -> nn.Module:
    """A model with random weights whose BatchNorms know their inputs."""
    torch.manual_seed(0)
    model = torchvision_model(name)
    size = image_size(name)
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train()
        norm.momentum = None
    with torch.no_grad():
        model(torch.randn(4, 3, size, size))
    return model.eval()


def image_size(name: str) -> int:
    """What a model is made for."""
    return 299 if name == "inception_v3" else 224


def choose(model: nn.Module, example: Tensor, choice: str, amount: float) -> upscale.Selection:
    """The channels that stay."""
    if choice == "random":
        return random_selection(model, amount, seed=0, even=True)
    constraint = "contiguous" if choice == "contiguous" else "none"
    scope = "local" if choice == "contiguous" else "global"
    return upscale.select(
        model, example, amount=amount, importance="l2", scope=scope, constraint=constraint
    )


def scripted_like(example: Tensor) -> upscale.Target:
    """TorchScript, with the example's batch and memory format."""
    return replace(target_like(Example.of(example)), runtime="torchscript")


def measure(cell: Cell, model: nn.Module, runs: int) -> Record:
    """Run a race."""
    size = image_size(cell.model)
    example = torch.randn(cell.batch, 3, size, size).contiguous(memory_format=FORMATS[cell.format])
    selection = choose(model, example, cell.choice, cell.amount)
    plan = upscale.plan(model, example, selection)
    narrow = upscale.plan(model, example, selection, widen=False)
    baseline = upscale.plan(model, example, selection, order="none")
    exported = upscale.export(model, plan)
    contestants = {
        "unpruned": model,
        "ours": exported,
        "zero_copy": wrong_numbers_zero_copy(model, narrow),
        "gather": upscale.export(model, baseline),
    }
    taken = race_models(contestants, example, scripted_like(example), runs=runs)
    left, whole = (sum(p.numel() for p in m.parameters()) for m in (exported, model))
    return Record(
        cell,
        **{name: own.median_ms for name, own in taken.items()},
        spread=(taken["ours"].high_ms - taken["ours"].low_ms) / taken["ours"].median_ms,
        copies=plan.copies,
        copied_bytes=plan.copied_bytes,
        parameters_left=left / whole,
        machine=f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        versions=taken["ours"].versions,
        date=datetime.date.today().isoformat(),
    )


def load() -> dict[Cell, Record]:
    """The races so far: of each, the run whose times were closest together."""
    found: dict[Cell, Record] = {}
    if RECORDS.exists():
        for line in RECORDS.read_text().splitlines():
            entry = json.loads(line)
            record = Record(Cell(**entry.pop("cell")), **entry)
            found[record.cell] = steadier(record, found.get(record.cell))
    return found


def steadier(record: Record, other: Record | None) -> Record:
    """Of two runs of one race, the one less disturbed."""
    return other if other is not None and other.spread <= record.spread else record


def mean(ratios: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def above(ratios: list[float]) -> float:
    """The share of ratios above one."""
    return sum(ratio > 1 for ratio in ratios) / len(ratios) if ratios else math.nan


def show(record: Record) -> str:
    """A race in one line."""
    cell = record.cell
    return (
        f"{cell.model:20} {cell.format:13} {cell.choice:10} {cell.amount:4.0%} "
        f"batch {cell.batch}: ours/unpruned {record.ours / record.unpruned:.3f}, "
        f"/zero-copy {record.ours / record.zero_copy:.3f}, /gather "
        f"{record.ours / record.gather:.3f} ({record.copies} copies, ±{record.spread / 2:.0%})"
    )


def summary(records: Iterable[Record]) -> list[str]:
    """The figures asked for, as rows of a table."""
    free = [r for r in records if r.cell.choice != "contiguous" and r.cell.batch == 1]
    windows = [r for r in records if r.cell.choice == "contiguous"]
    batched = [r for r in records if r.cell.batch > 1]
    rows = ["| ratio | asked | measured | races |", "| --- | --- | --- | --- |"]

    def row(name: str, asked: str, value: float, count: int) -> None:
        if count:
            rows.append(f"| {name} | {asked} | {value:.3f} | {count} |")

    for memory, asked in (("NCHW", "≤ 1.02"), ("channels-last", "≤ 1.10")):
        own = [r for r in free if r.cell.format == memory]
        name = f"exported ÷ zero-copy reference, {memory}"
        row(name, asked, mean(r.ours / r.zero_copy for r in own), len(own))
    every = [r.ours / r.unpruned for r in free]
    row("exported ÷ unpruned, worst row", "≤ 1.00", max(every, default=math.nan), len(every))
    row("exported ÷ unpruned, share of rows above 1", "0", above(every), len(every))
    quarter = [r.ours / r.unpruned for r in free if r.cell.amount == 0.25]
    row("exported ÷ unpruned at 25%", "≤ 0.80", mean(quarter), len(quarter))
    last = [r.ours / r.gather for r in free if r.cell.format == "channels-last"]
    row("exported ÷ plain gather, channels-last", "≤ 0.80", mean(last), len(last))
    free_reads = [r.zero_copy / r.gather for r in free if r.cell.format == "channels-last"]
    row("zero-copy reference ÷ plain gather, channels-last", "–", mean(free_reads), len(free_reads))
    for memory in FORMATS:
        own = [r for r in windows if r.cell.format == memory]
        name = f"`contiguous`, exported ÷ zero-copy, {memory}"
        row(name, "≤ 1.03", mean(r.ours / r.zero_copy for r in own), len(own))
    worst = max((r.ours / r.unpruned for r in batched), default=math.nan)
    row("batch 8, exported ÷ unpruned, worst row", "≤ 1.00", worst, len(batched))
    return rows


def document(records: list[Record], remark: str) -> str:
    """The page in the docs."""
    first = records[0]
    lines = [
        "# How fast exports run",
        "",
        f"Written by `python benchmarks/latency.py --write` from {len(records)} races on one core",
        f"({first.machine}; {first.versions}; {first.date}). Random weights; medians; geometric",
        "means of ratios, each within one race. `l2 global` and `random` are unconstrained.",
        "*Spread* is how far the middle half of our times was apart, over the median.",
        *([remark] if remark else []),
        "",
        *summary(records),
        "",
        "![latency against sparsity](images/latency.png)",
        "",
        "| model | format | choice | amount | batch | ÷ unpruned | ÷ zero-copy "
        "| ÷ gather | copies | spread |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in sorted(records, key=lambda r: (r.cell.batch, r.cell.model, str(r.cell))):
        c = r.cell
        lines.append(
            f"| {c.model} | {c.format} | {c.choice} | {c.amount:.0%} | {c.batch} "
            f"| {r.ours / r.unpruned:.2f} | {r.ours / r.zero_copy:.2f} "
            f"| {r.ours / r.gather:.2f} | {r.copies} | {r.spread:.0%} |"
        )
    return "\n".join(lines) + "\n"


def plot(records: list[Record], path: Path) -> None:
    """Ours, the baseline, zero-copy and the unpruned model against sparsity, like the paper's."""
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(2, 1, figsize=(12, 8), sharex=True)
    models = [m for m in MODELS if any(r.cell.model == m for r in records)]
    styles = (("ours", "-", "#3b6ea8"), ("zero_copy", ":", "#4f9d69"), ("gather", "--", "#c8553d"))
    for axis, memory in zip(axes, FORMATS, strict=True):
        for place, model in enumerate(models):
            own = sorted(
                (r.cell.amount, r)
                for r in records
                if (r.cell.model, r.cell.format, r.cell.choice, r.cell.batch)
                == (model, memory, "random", 1)
            )
            for name, style, colour in styles:
                axis.plot(
                    [place + amount for amount, _ in own],
                    [getattr(r, name) / r.unpruned for _, r in own],
                    style,
                    marker=".",
                    color=colour,
                    label=name.replace("_", "-") if place == 0 else None,
                )
        axis.axhline(1.0, color="#999999", linewidth=0.8, label="unpruned")
        axis.set_title(f"{memory}, random masks of 10, 25 and 50%, batch 1", fontsize=10)
        axis.set_ylabel("latency ÷ unpruned")
        axis.set_xticks([place + 0.25 for place in range(len(models))], models, rotation=35)
    axes[0].legend(fontsize=8, ncols=4, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Race what has not raced yet; then summarise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="torchvision's names")
    parser.add_argument("--amounts", type=float, nargs="+", default=list(AMOUNTS))
    parser.add_argument("--quick", action="store_true", help="batch 1, few runs, nothing recorded")
    parser.add_argument("--runs", type=int, default=20, help="runs behind each median")
    parser.add_argument(
        "--again",
        type=float,
        default=math.inf,
        metavar="SPREAD",
        help="run races once more whose recorded times were spread wider than this share",
    )
    parser.add_argument("--write", action="store_true", help="write the page and its plot")
    parser.add_argument("--remark", default="", help="what the page says of the circumstances")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    models = arguments.models or MODELS
    records = {} if arguments.quick else load()
    ready: tuple[str, nn.Module | None] = ("", None)
    for cell in cells(models, arguments.amounts, quick=arguments.quick):
        if arguments.write or (cell in records and records[cell].spread <= arguments.again):
            continue
        if ready[0] != cell.model:
            ready = (cell.model, prepared(cell.model))
        assert ready[1] is not None
        record = measure(cell, ready[1], 10 if arguments.quick else arguments.runs)
        print(show(record), flush=True)
        if not arguments.quick:
            RECORDS.parent.mkdir(exist_ok=True)
            with RECORDS.open("a") as stream:
                stream.write(json.dumps(asdict(record)) + "\n")
        records[cell] = steadier(record, records.get(cell))
    print("\n".join(summary(records.values())))
    if arguments.write:
        (ROOT / "docs" / "latency.md").write_text(
            document(list(records.values()), arguments.remark)
        )
        plot(list(records.values()), ROOT / "docs" / "images" / "latency.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
