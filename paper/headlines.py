"""The headline aggregates: `python -m paper.headlines [--quick]`.

What unconstrained pruning gains in accuracy over constrained, and what our export saves in latency
against the baseline (channels in place), averaged as the paper averages: over models, criteria and
the amounts of its tables. Its averages are taken anew from its tables. Its accuracy is ImageNet's,
ours that of CIFAR-10 ResNets, and its latency is a GPU's: the columns stand side by side and
mean different things.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from paper.common import PAPER_HARDWARE, Found, hardware, measure, paper_tables, parse, table
from upscale.sweep import Grid

CRITERIA = ("l1", "l2", "fpgm", "hrank")
AMOUNTS = (0.01, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40)
MODELS = (
    *("densenet121", "mnasnet0_75", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large"),
    *("mobilenet_v3_small", "resnet101", "resnet18", "resnet50", "squeezenet1_0", "squeezenet1_1"),
)

Gains = Mapping[str, list[float]]


def grids(amounts: tuple[float, ...], *, quick: bool) -> list[Grid]:
    """Accuracy of trained networks, latency of the paper's."""
    accuracy = {
        "model": ["paper.cifar:resnet20"]
        if quick
        else ["paper.cifar:resnet20", "paper.cifar:resnet56"],
        "shape": "1,3,32,32",
        "data": "paper.cifar:some_test" if quick else "paper.cifar:test",
        "sample": "paper.cifar:sample",
        "amount": list(amounts),
        "of": "parameters",
        "constraint": ["none", "segment"],
        "metric": "accuracy",
    }
    latency = {
        "model": [f"torchvision:{name}" for name in (("squeezenet1_1",) if quick else MODELS)],
        "amount": list(amounts),
        "of": "parameters",
        "importance": ["l1"] if quick else ["l1", "l2", "fpgm"],
        "method": ["optimal", "none", "zero-copy"],
        "metric": "latency",
        "runtime": "torchscript",
        "runs": 5 if quick else 100,
    }
    local = ["l1"] if quick else list(CRITERIA)
    return [
        Grid({**accuracy, "importance": local}),
        Grid({**accuracy, "importance": "lamp", "scope": "global"}),
        Grid(latency),
        *([] if quick else [Grid({**latency, "importance": "lamp", "scope": "global"})]),
    ]


def accuracy_gains(found: Found) -> Gains:
    """Points of accuracy that unconstrained is ahead by, for each model."""
    gains: dict[str, list[float]] = defaultdict(list)
    for cell, result in found.items():
        other = found.get(replace(cell, constraint="segment"))
        if cell.metric == "accuracy" and cell.constraint == "none" and other:
            gains[cell.model.rpartition(":")[2]].append(
                result["top1_percent"] - other["top1_percent"]
            )
    return gains


def latency_savings(found: Found) -> Gains:
    """What our export takes less than the baseline, in percent, for each model."""
    savings: dict[str, list[float]] = defaultdict(list)
    for cell, result in found.items():
        other = found.get(replace(cell, method="none"))
        if cell.metric == "latency" and cell.method == "optimal" and other:
            saved = 100 * (1 - result["ratio"] / other["ratio"])
            savings[cell.model.rpartition(":")[2]].append(saved)
    return savings


def paper_gains(tables: Mapping[str, Any]) -> tuple[Gains, Gains]:
    """The same two of the paper's tables."""
    gains: dict[str, list[float]] = defaultdict(list)
    savings: dict[str, list[float]] = defaultdict(list)
    for model, criteria in tables.get("models", {}).items():
        for own in criteria.values():
            free, bound = own["accuracy_unconstrained_pct"], own["accuracy_constrained_pct"]
            gains[model] += [a - b for a, b in zip(free, bound, strict=True) if None not in (a, b)]
            ours, plain = own["latency_upscale_ms"], own["latency_baseline_ms"]
            savings[model] += [
                100 * (1 - a[0] / b[0])
                for a, b in zip(ours, plain, strict=True)
                if None not in (a, b)
            ]
    return gains, savings


def rows(ours: Gains, theirs: Gains) -> Iterable[tuple[Any, ...]]:
    """A row for each model, and the mean of all settings."""
    for name in sorted({*ours, *theirs}):
        yield (
            name,
            _mean([ours.get(name, [])]),
            len(ours.get(name, [])),
            _mean([theirs.get(name, [])]),
        )
    count = sum(len(own) for own in ours.values())
    yield "all", _mean(ours.values()), count, _mean(theirs.values())


def _mean(lists: Iterable[list[float]]) -> float | None:
    values = [value for own in lists for value in own]
    return fmean(values) if values else None


def main() -> int:
    """Measure and print."""
    arguments = parse(__doc__, "headlines")
    amounts = (0.10, 0.30) if arguments.quick else AMOUNTS
    found = measure(arguments, grids(amounts, quick=arguments.quick))
    gains, savings = paper_gains(paper_tables(arguments))
    print(f"Measured on {hardware(arguments)}; batch 1, one core, TorchScript.\n")
    header = ["model", "gain, points (CIFAR-10)", "settings", "paper, ImageNet"]
    print(table(header, rows(accuracy_gains(found), gains)))
    print()
    header = ["model", "latency saved against the baseline, %", "settings", PAPER_HARDWARE]
    print(table(header, rows(latency_savings(found), savings)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
