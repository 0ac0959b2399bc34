"""How long an export takes: `python benchmarks/export.py [MODEL ...] [--runs N] [--json PATH]`.

With `--against TREE`, another checkout of this repository, both are timed, turn by turn, each in
processes of its own, and the ratio is printed: this one's seconds over the other's.

Every convolution and linear drops a quarter of its input channels, at random. One thread, wall
clock, verification excluded; run it on a quiet core (`cpu s`, the processor's time behind
`total s`, tells whether it was). `plan` and `export` are timed as a user calls them. Capture is
timed on its own and taken off the plan, which contains it: what is left is flow, live sets,
ordering and edges. Columns are medians over the runs. A model's first run, shown as `first s`,
is in no median: in the first of a process torch imports what it needs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

import upscale
from upscale.capture import Example, capture
from upscale.zoo import torchvision_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where `trials` is

from trials.masks import random_selection

MODELS = (
    *("resnet18", "resnet50", "resnet101", "densenet121", "mobilenet_v2"),
    "efficientnet_b0",
)
# What is asked of one core. The paper's own code took 7.5 s and 5.9 s, by the project's design.
LIMITS = {"resnet50": 1.0, "densenet121": 2.0}

Row = dict[str, float | str | None]
Result = TypeVar("Result")


def timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """What an action gives and the seconds it took."""
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start


def time_export(name: str, arguments: argparse.Namespace) -> Row:
    """The row of one model."""
    torch.manual_seed(arguments.seed)
    model = torchvision_model(name)
    selection = random_selection(model, arguments.amount, arguments.seed, even=True)
    example = torch.randn(1, 3, arguments.size, arguments.size)

    def run() -> dict[str, float]:
        started = time.process_time()
        # Planned and exported first, so that the first run is what a user's first call costs.
        plan, planning = timed(
            lambda: upscale.plan(model, example, selection, order=arguments.order)
        )
        _, exporting = timed(lambda: upscale.export(model, plan))
        working = time.process_time() - started
        _, capturing = timed(lambda: capture(model, Example.of(example)))
        return {
            "capture s": capturing,
            "plan s": planning - capturing,
            "export s": exporting,
            "total s": planning + exporting,
            "cpu s": working,
        }

    first = run()
    runs = [run() for _ in range(arguments.runs)]
    row: Row = {"model": name}
    row |= {column: median(each[column] for each in runs) for column in first}
    row["first s"] = first["total s"]
    row["limit s"] = LIMITS.get(name)
    return row


def compared(name: str, arguments: argparse.Namespace) -> Row:
    """The seconds of this checkout and of another, and their ratio."""
    here, there = Path(__file__).resolve().parent.parent, arguments.against.resolve()
    seconds: dict[Path, list[float]] = {here: [], there: []}
    for _ in range(arguments.rounds):
        for tree in (there, here):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "row.json"
                command = [sys.executable, "benchmarks/export.py", name, "--json", str(path)]
                settings = {"PYTHONPATH": f"{tree / 'src'}:{tree}", "OMP_NUM_THREADS": "1"}
                subprocess.run(
                    [*command, "--runs", str(arguments.runs)],
                    cwd=tree,
                    env={**os.environ, **settings},
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
                seconds[tree].append(json.loads(path.read_text())[0]["total s"])
    now, before = median(seconds[here]), median(seconds[there])
    return {"model": name, "here s": now, "there s": before, "ratio": now / before}


def show(rows: list[Row]) -> None:
    """Print the rows as a table."""
    header = list(rows[0])
    cells = [header, *([_cell(row[column]) for column in header] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(header))]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _cell(value: float | str | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else value


def main() -> None:
    """Time the models asked for; print a table, and write it where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="torchvision's names")
    parser.add_argument("--runs", type=int, default=5, help="runs behind each median")
    parser.add_argument("--order", default="optimal", choices=("optimal", "mrap", "none"))
    parser.add_argument("--amount", type=float, default=0.25, help="share of channels that go")
    parser.add_argument("--size", type=int, default=224, help="height and width of the example")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--against", type=Path, metavar="TREE", help="time another checkout too")
    parser.add_argument("--rounds", type=int, default=3, help="turns of both, with --against")
    arguments = parser.parse_args()
    if arguments.against:
        show([compared(name, arguments) for name in arguments.models or MODELS])
        return
    torch.set_num_threads(1)
    rows = [time_export(name, arguments) for name in arguments.models or MODELS]
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
