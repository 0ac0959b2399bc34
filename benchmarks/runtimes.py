"""Exports where people deploy: `python benchmarks/runtimes.py [MODEL ...] [--runtimes NAME ...]`.

For each model, runtime, amount and way of choosing channels the unpruned model races two exports of
one selection, turn by turn on one core: the plan made for that runtime, and the plan made for
torch. Weights are random, BatchNorms calibrated. Races that are already in
`benchmarks/results/runtimes.jsonl` are not run again, so a run that was stopped goes on; `--quick`
records nothing. `--write` makes `docs/runtimes.md` of the records.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from latency import BATCHED, MODELS, choose, image_size, mean, prepared
from torch import nn

import upscale
from upscale.targets.racing import race_models

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "runtimes.jsonl"
PAGE = ROOT / "docs" / "runtimes.md"
RUNTIMES = ("onnxruntime", "openvino", "compile", "torchscript")
# Inductor takes minutes to compile a model.
COMPILED = ("resnet50", "mobilenet_v2", "efficientnet_b1", "mobilenet_v3_large")
AMOUNTS, CHOICES = (0.10, 0.25, 0.50), ("random", "l2 global", "contiguous")


@dataclass(frozen=True, slots=True)
class Cell:
    """One race."""

    model: str
    runtime: str
    choice: str
    amount: float
    batch: int


@dataclass(frozen=True, slots=True)
class Record:
    """What a race showed: medians in milliseconds, the spread of our times, what is left."""

    cell: Cell
    unpruned: float
    ours: float
    torchs: float
    spread: float
    runs: int
    parameters_left: float
    versions: str
    machine: str

    def __str__(self) -> str:
        cell, ours, other = self.cell, self.ours / self.unpruned, self.torchs / self.unpruned
        return (
            f"{cell.model:20} {cell.runtime:12} {cell.choice:10} {cell.amount:4.0%} batch "
            f"{cell.batch}: {ours:.3f} of {self.unpruned:.1f} ms, planned for torch {other:.3f}, "
            f"{self.parameters_left:.2f} of the parameters (±{self.spread / 2:.0%})"
        )


def cells(arguments: argparse.Namespace) -> Iterator[Cell]:
    """The races, model by model."""
    for model in arguments.models or MODELS:
        for runtime in arguments.runtimes:
            if runtime == "compile" and model not in COMPILED:
                continue
            for amount in arguments.amounts:
                if runtime == "compile" and amount != 0.25:
                    continue
                for choice in arguments.choices:
                    yield Cell(model, runtime, choice, amount, 1)
                if model in BATCHED and "random" in arguments.choices and not arguments.quick:
                    yield Cell(model, runtime, "random", amount, 8)


def measure(cell: Cell, model: nn.Module, runs: int) -> Record:
    """Run a race."""
    size = image_size(cell.model)
    example = torch.randn(cell.batch, 3, size, size)
    selection = choose(model, example, cell.choice, cell.amount)
    target = upscale.Target(runtime=cell.runtime, batch=cell.batch)
    plans = {
        "ours": upscale.plan(model, example, selection, target=target),
        "torchs": upscale.plan(model, example, selection),
    }
    exports = {name: upscale.export(model, plan) for name, plan in plans.items()}
    taken = race_models({"unpruned": model, **exports}, example, target, runs=runs)
    left, whole = (sum(p.numel() for p in m.parameters()) for m in (exports["ours"], model))
    ours = taken["ours"]
    return Record(
        cell,
        **{name: own.median_ms for name, own in taken.items()},
        spread=(ours.high_ms - ours.low_ms) / ours.median_ms,
        runs=runs,
        parameters_left=left / whole,
        versions=ours.versions,
        machine=f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    )


def load() -> dict[Cell, Record]:
    """The races so far; of one that was run twice, the steadier."""
    found: dict[Cell, Record] = {}
    for line in RECORDS.read_text().splitlines() if RECORDS.exists() else ():
        entry = json.loads(line)
        record = Record(Cell(**entry.pop("cell")), **entry)
        before = found.get(record.cell)
        if before is None or record.spread < before.spread:
            found[record.cell] = record
    return found


def summary(records: Iterable[Record]) -> list[str]:
    """Each runtime's figures, as rows of a table."""
    rows = [
        "| runtime | races | rows above 1 | worst | 25% random, mean | made for torch, mean |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    records = list(records)
    for runtime in RUNTIMES:
        own = [r for r in records if r.cell.runtime == runtime]
        quarter = [r for r in own if (r.cell.amount, r.cell.choice) == (0.25, "random")]
        ratios = [r.ours / r.unpruned for r in own]
        if own:
            rows.append(
                f"| {runtime} | {len(own)} | {sum(x > 1 for x in ratios)} | {max(ratios):.2f} "
                f"| {mean(r.ours / r.unpruned for r in quarter):.2f} "
                f"| {mean(r.torchs / r.unpruned for r in quarter):.2f} |"
            )
    return rows


def document(records: list[Record]) -> str:
    """The page in the docs."""
    lines = [
        "# How fast exports run where people deploy",
        "",
        f"Written by `python benchmarks/runtimes.py --write` from {len(records)} races on one",
        f"thread ({records[0].machine}). Random weights; medians; ratios within one race.",
        "*Spread* is how far the middle half of our times was apart, over the median.",
        "",
        *summary(records),
        "",
        "| model | runtime | choice | amount | batch | ÷ unpruned | made for torch ÷ unpruned "
        "| parameters left | runs | spread | versions |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in sorted(records, key=lambda r: (r.cell.runtime, r.cell.model, str(r.cell))):
        c = r.cell
        lines.append(
            f"| {c.model} | {c.runtime} | {c.choice} | {c.amount:.0%} | {c.batch} "
            f"| {r.ours / r.unpruned:.2f} | {r.torchs / r.unpruned:.2f} "
            f"| {r.parameters_left:.0%} | {r.runs} | {r.spread:.0%} | {r.versions} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Race what has not raced yet; then summarise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="torchvision's names")
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--amounts", type=float, nargs="+", default=list(AMOUNTS))
    parser.add_argument("--choices", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--runs", type=int, default=20, help="runs behind each median")
    parser.add_argument(
        "--again",
        type=float,
        default=math.inf,
        metavar="RATIO",
        help="race rows once more that were above this ratio",
    )
    parser.add_argument("--quick", action="store_true", help="batch 1, nothing recorded")
    parser.add_argument("--write", action="store_true", help="write the page from the records")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    records = {} if arguments.quick else load()
    ready: tuple[str, nn.Module] | None = None
    for cell in () if arguments.write else cells(arguments):
        known = records.get(cell)
        if known is not None and known.ours / known.unpruned <= arguments.again:
            continue
        if ready is None or ready[0] != cell.model:
            ready = (cell.model, prepared(cell.model))
        record = measure(cell, ready[1], arguments.runs)
        print(record, flush=True)
        records[cell] = record
        if not arguments.quick:
            with RECORDS.open("a") as stream:
                stream.write(json.dumps(asdict(record)) + "\n")
    print("\n".join(summary(records.values())))
    if arguments.write:
        PAGE.write_text(document(list(records.values())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
