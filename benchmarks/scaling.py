"""How export time grows with depth: `python benchmarks/scaling.py [--json PATH] [--plot PATH]`.

ResNets from 18 to 152 and DenseNets from 121 to 201: seconds to plan and export, verification
excluded. Every convolution and linear drops a quarter of its input channels, at random. One
thread; `cpu s` is the processor's time behind `total s`, and lower where the machine was busy.
The models take turns, and each figure is the median over the rounds after one that does not
count. `layers` are convolutions and linears; `edges` are the uses of one node's result by another
in the traced graph, of which a dense block of n layers has about n² / 2.

For each family the exponent of a power law is fitted: 1 is linear growth. `densenet161` is wider,
not deeper, and in no fit. Drawing needs matplotlib (`pip install "upscale[plot]"`); the picture in
the documentation is `--plot docs/images/scaling.png`, to be drawn on a quiet machine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import time
from pathlib import Path
from statistics import fmean, median

import torch
from export import Row, random_selection, show, timed
from torch import nn

import upscale
from upscale.capture import Captured
from upscale.model.layers import layers
from upscale.planning.plan import origin_of
from upscale.zoo import torchvision_model

FAMILIES = {
    "resnet": ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    "densenet": ("densenet121", "densenet169", "densenet201"),
    "densenet, wider": ("densenet161",),
}
AMOUNT = 0.25
SIZE = 224
SEED = 0
COUNTS = ("layers", "edges")
FITS = (("total s", "layers"), ("cpu s", "layers"), ("cpu s", "edges"))


def time_all(rounds: int) -> list[Row]:
    """A row for every model, medians over interleaved rounds."""
    torch.manual_seed(SEED)
    models = {name: torchvision_model(name) for names in FAMILIES.values() for name in names}
    timings: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    for _ in range(1 + rounds):
        for name, model in models.items():
            timings[name].append(time_once(model))
    rows: list[Row] = []
    for family, names in FAMILIES.items():
        for name in names:
            counted = timings[name][1:]
            row: Row = {"family": family, "model": name}
            row |= {column: median(each[column] for each in counted) for column in counted[0]}
            rows.append(row)
    return rows


def time_once(model: nn.Module) -> dict[str, float]:
    """Seconds to plan and to export, and how much there was to do."""
    selection = random_selection(model, AMOUNT, SEED, even=True)
    example = torch.randn(1, 3, SIZE, SIZE)
    started = time.process_time()
    plan, planning = timed(lambda: upscale.plan(model, example, selection))
    _, exporting = timed(lambda: upscale.export(model, plan))
    working = time.process_time() - started
    captured = origin_of(plan).captured
    assert isinstance(captured, Captured)
    return {
        "layers": len(layers(model)),
        "edges": sum(len(node.all_input_nodes) for node in captured.graph.nodes),
        "plan s": planning,
        "export s": exporting,
        "total s": planning + exporting,
        "cpu s": working,
    }


def exponent(points: list[tuple[float, float]]) -> float:
    """The slope of the least-squares line through the logarithms of the points."""
    xs, ys = ([math.log(value) for value in axis] for axis in zip(*points, strict=True))
    x_mean, y_mean = fmean(xs), fmean(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - x_mean) ** 2 for x in xs)


def points_of(rows: list[Row], family: str, by: str, of: str) -> list[tuple[float, float]]:
    """One column of a family's models against another."""
    return [(float(row[by] or 0), float(row[of] or 0)) for row in rows if row["family"] == family]


def fit(rows: list[Row]) -> list[Row]:
    """The exponents of every family that has more than one depth."""
    return [
        {"family": family, "time": of, "against": by, "exponent": exponent(points)}
        for family in FAMILIES
        for of, by in FITS
        if len(points := points_of(rows, family, by, of)) > 1
    ]


def plot(rows: list[Row], exponents: list[Row], path: Path) -> bool:
    """Draw seconds against layers and edges; tell whether matplotlib is there to do it."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        return False
    figure = figures.Figure(figsize=(10, 4), layout="constrained")
    powers = {
        (row["family"], row["against"]): f", exponent {row['exponent']:.2f}"
        for row in exponents
        if row["time"] == "cpu s"
    }
    titles = {"layers": "convolutions and linears", "edges": "edges of the traced graph"}
    for axes, (by, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        for family in FAMILIES:
            points = zip(*sorted(points_of(rows, family, by, "cpu s")), strict=True)
            axes.plot(*points, marker="o", label=family + powers.get((family, by), ""))
        for row in rows:
            where = (row[by], row["cpu s"])
            axes.annotate(row["model"], where, (4, -10), textcoords="offset points", fontsize=7)
        axes.set(xlabel=title, ylabel="processor seconds to plan and export")
        axes.set_xlim(left=0, right=1.2 * max(float(row[by] or 0) for row in rows))
        axes.set_ylim(bottom=0)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return True


def main() -> None:
    """Print the table and the exponents; write and draw them where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds behind each median")
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--plot", type=Path, help="draw it here, as docs/images/scaling.png")
    parser.add_argument("--from-json", type=Path, help="draw an earlier run instead of timing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.from_json:
        rows = json.loads(arguments.from_json.read_text())["rows"]
    else:
        rows = time_all(arguments.rounds)
    exponents = fit(rows)
    show([{**row, **{count: f"{row[count]:.0f}" for count in COUNTS}} for row in rows])
    print()
    show(exponents)
    if arguments.json:
        found = {"rows": rows, "exponents": exponents}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    if arguments.plot and not plot(rows, exponents, arguments.plot):
        print("matplotlib is not installed; no plot")


if __name__ == "__main__":
    main()
