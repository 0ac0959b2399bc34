"""How good and how fast orders are: `python benchmarks/ordering.py [--quick] [--json PATH]`.

Four tables: families that can be contiguous, planted families with a few sets spoilt, the
largest families we promise to handle, and time against size. Times are wall-clock, in this one
process; run it on a quiet core. Every answer is verified with `check`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path

from upscale.ordering import Ordering, check, solve

Sets = list[set[int]]
Row = dict[str, float | int | str | None]

# What the paper's own code found on 300 instances of its own, quoted from the project's design.
REFERENCE = {2: 300, 3: 247, 4: 146, 6: 56, 8: 4, 12: 0}


def feasible_family(generator: random.Random, channels: int, sets: int) -> Sets:
    """Random intervals of a hidden order of the channels."""
    hidden = list(range(channels))
    generator.shuffle(hidden)
    family = []
    for _ in range(sets):
        start, stop = sorted(generator.sample(range(channels + 1), 2))
        family.append(set(hidden[start:stop]))
    return family


def spoil(generator: random.Random, family: Sets, channels: int, count: int, how: str) -> Sets:
    """Replace some sets: by random ones of their size, or by trading a twentieth of each."""
    spoilt = list(family)
    for at in generator.sample(range(len(family)), count):
        members = sorted(family[at])
        traded = len(members) if how == "replaced" else max(1, len(members) // 20)
        kept = generator.sample(members, len(members) - traded)
        others = sorted(set(range(channels)) - set(kept))
        spoilt[at] = set(kept) | set(generator.sample(others, traded))
    return spoilt


def random_family(generator: random.Random, channels: int, sets: int) -> Sets:
    """Independent sets of three quarters of the channels."""
    return [set(generator.sample(range(channels), channels * 3 // 4)) for _ in range(sets)]


def timed(
    sets: Sets, weights: list[float] | None = None, method: str = "optimal"
) -> tuple[Ordering, float]:
    """A checked answer and the seconds it took."""
    start = time.perf_counter()
    ordering = solve(sets, weights, method=method)
    seconds = time.perf_counter() - start
    check(sets, weights, ordering)
    return ordering, seconds


def feasible_table(quick: bool) -> list[Row]:
    """How often an order without copies is found where there is one."""
    rows: list[Row] = []
    instances = 30 if quick else 300
    for consumers in (2, 3, 4, 6, 8, 12, 24, 64):
        generator = random.Random(consumers)
        families = [feasible_family(generator, 48, consumers) for _ in range(instances)]
        row: Row = {"consumers": consumers, "instances": instances}
        for method in ("optimal", "mrap"):
            answers = [timed(family, method=method) for family in families]
            row[method] = sum(ordering.cost == 0 for ordering, _ in answers)
            row[f"{method} ms"] = 1e3 * sum(seconds for _, seconds in answers) / instances
        row["reference of 300"] = REFERENCE.get(consumers)
        rows.append(row)
    return rows


def planted_table(quick: bool) -> list[Row]:
    """Feasible families with 1 to 6 sets spoilt, weights one each and by size."""
    rows: list[Row] = []
    for sets in (8, 12, 16, 20, 30, 40):
        for how in ("replaced", "traded"):
            generator = random.Random(sets)
            proven = total = 0
            gaps = [0.0]
            times = []
            for channels in (256, 2048) if quick else (256, 512, 1024, 2048):
                for spoilt in range(1, 7):
                    feasible = feasible_family(generator, channels, sets)
                    family = spoil(generator, feasible, channels, spoilt, how)
                    for weights in (None, [float(len(members)) for members in family]):
                        ordering, seconds = timed(family, weights)
                        total += 1
                        proven += ordering.optimal
                        times.append(seconds)
                        if ordering.cost:
                            gaps.append(1 - ordering.lower_bound / ordering.cost)
            rows.append(
                {
                    "sets": sets,
                    "spoilt": how,
                    "families": total,
                    "proven": proven,
                    "largest gap": max(gaps),
                    "mean ms": 1e3 * sum(times) / total,
                    "max ms": 1e3 * max(times),
                }
            )
    return rows


def large_table(quick: bool) -> list[Row]:
    """The largest families we promise to handle, each within two seconds."""
    channels, sets = (2_000, 40) if quick else (10_000, 100)
    kinds: dict[str, Callable[[random.Random, int, int], Sets]] = {
        "feasible": feasible_family,
        "random": random_family,
    }
    rows: list[Row] = []
    for kind, draw in kinds.items():
        ordering, seconds = timed(draw(random.Random(0), channels, sets))
        rows.append(
            {
                "kind": kind,
                "channels": channels,
                "sets": sets,
                "cost": ordering.cost,
                "lower bound": ordering.lower_bound,
                "runs": sum(ordering.runs),
                "seconds": seconds,
            }
        )
    return rows


def scaling_table(quick: bool) -> list[Row]:
    """Time against the total size of feasible families; the last column should stay flat."""
    rows: list[Row] = []
    for channels in (500, 1_000, 2_000, 4_000) if quick else (1_250, 2_500, 5_000, 10_000, 20_000):
        family = feasible_family(random.Random(channels), channels, channels // 100)
        size = sum(len(members) for members in family)
        seconds = min(timed(family)[1] for _ in range(3))
        rows.append(
            {
                "channels": channels,
                "sets": len(family),
                "total size": size,
                "ms": 1e3 * seconds,
                "ns / (n log2 n)": 1e9 * seconds / (size * math.log2(size)),
            }
        )
    return rows


def show(title: str, rows: list[Row]) -> None:
    """Print a table."""
    print(f"\n{title}")
    columns = list(rows[0])
    cells = [columns, *([_cell(row[column]) for column in columns] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def plot(rows: list[Row], path: Path) -> None:
    """Draw time against total size, where matplotlib is installed."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        print("matplotlib is not installed; no plot")
        return
    figure = figures.Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.loglog([row["total size"] for row in rows], [row["ms"] for row in rows], marker="o")
    axes.set(xlabel="total size of a feasible family", ylabel="milliseconds")
    figure.savefig(path)


def main() -> None:
    """Print the tables; write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller families")
    parser.add_argument("--json", type=Path, help="write the tables here too")
    parser.add_argument("--plot", type=Path, help="draw time against size here")
    arguments = parser.parse_args()
    tables = {
        "48 channels, feasible by construction: zero-copy orders found": feasible_table,
        "planted families": planted_table,
        "largest families": large_table,
        "time against size, feasible": scaling_table,
    }
    results = {}
    for title, table in tables.items():
        results[title] = table(arguments.quick)
        show(title, results[title])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.plot:
        plot(results["time against size, feasible"], arguments.plot)


if __name__ == "__main__":
    main()
