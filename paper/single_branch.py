"""How much lies in single-branch segments: `python -m paper.single_branch [--quick]`.

For each architecture, oldest first: the share of convolutions whose output one layer alone reads
and which alone make what it reads; the shares of multiply-accumulates and of latency that go when
every channel but one goes there; and the same for all segments. The paper's numbers stand beside
ours where it gives the same quantity; its latency is of a GPU, ours of a CPU. Weights are random:
which channels go makes no difference here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from paper.common import (
    NEARLY_ALL,
    PAPER_HARDWARE,
    Found,
    chosen,
    hardware,
    measure,
    paper_tables,
    parse,
    table,
)
from paper.drawing import draw_bars
from upscale.capture import Example, capture
from upscale.flow.analyse import analyse
from upscale.flow.segments import find_segments
from upscale.model.layers import weight_names
from upscale.sweep import Grid, Metric, Trial

YEARS = {
    "alexnet": 2012,
    "vgg16": 2014,
    "googlenet": 2014,
    "resnet18": 2015,
    "resnet50": 2015,
    "resnet152": 2015,
    "squeezenet1_1": 2016,
    "densenet121": 2016,
    "resnext50_32x4d": 2016,
    "mobilenet_v2": 2018,
    "mnasnet1_3": 2018,
    "mobilenet_v3_small": 2019,
    "mobilenet_v3_large": 2019,
    "efficientnet_b0": 2019,
    "efficientnet_b7": 2019,
    "efficientnet_v2_s": 2021,
    "convnext_tiny": 2022,
}
QUICK = ("resnet18", "squeezenet1_1", "mobilenet_v3_small", "mobilenet_v3_large")
# Quantities that the paper gives: (model, column) -> where they are in its headlines.
PAPER = {
    ("resnet152", "convolutions"): "convolutions_pct_resnet_2015",
    ("mobilenet_v3_large", "convolutions"): "convolutions_pct_mobilenet_v3_large",
    ("efficientnet_b7", "macs"): "flops_pct_efficientnet_b7",
    ("mobilenet_v3_small", "latency"): "latency_pct_mobilenet_v3_small",
}


def single_branch_layers(trial: Trial) -> set[str]:
    """The layers that alone make what one layer alone reads."""
    flow = analyse(capture(trial.model, Example.of(trial.example)))
    single = {
        producer
        for segment in find_segments(flow)
        if segment.single_branch
        for producer in segment.producers
    }
    return {name for name, weight in weight_names(trial.model).items() if weight in single}


def _convolutions(trial: Trial) -> dict[str, Any]:
    """How many convolutions there are, and how many make a single-branch segment."""
    names, single = weight_names(trial.model), single_branch_layers(trial)
    found = [
        name
        for name, module in trial.model.named_modules()
        if isinstance(module, nn.modules.conv._ConvNd) and name in names
    ]
    return {"all": len(found), "single_branch": sum(name in single for name in found)}


convolutions = Metric(_convolutions, selects=False)


def grids(models: Sequence[str], runs: int) -> list[Grid]:
    """What is counted, and what is pruned as far as it goes and measured."""
    own = {"model": [f"torchvision:{name}" for name in models]}
    far = {"amount": NEARLY_ALL, "segments": ["single-branch", "all"], "constraint": "segment"}
    return [
        Grid({**own, "amount": 0, "metric": "paper.single_branch:convolutions"}),
        Grid({**own, **far, "metric": "macs"}),
        Grid({**own, **far, "metric": "latency", "runtime": "torchscript", "runs": runs}),
    ]


def shares(found: Found, model: str) -> dict[str, float]:
    """What goes, in percent of the whole, by column."""
    shares: dict[str, float] = {}
    for cell, result in found.items():
        if cell.model != f"torchvision:{model}":
            continue
        if cell.metric.endswith("convolutions"):
            shares["convolutions"] = 100 * result["single_branch"] / max(1, result["all"])
        else:
            where = "" if cell.segments == "single-branch" else " of all"
            shares[f"{cell.metric}{where}"] = 100 * (1 - result["ratio"])
    return shares


def main() -> int:
    """Measure and print."""
    arguments = parse(__doc__)
    every = tuple(YEARS)
    models = chosen(arguments.models, every, few=QUICK if arguments.quick else every)
    found = measure(arguments, grids(models, runs=5 if arguments.quick else 100))
    theirs = paper_tables(arguments).get("headlines", {}).get("single_branch_share", {})
    columns = ("convolutions", "macs", "latency", "macs of all", "latency of all")
    rows = []
    for model in sorted(models, key=lambda name: (YEARS[name], name)):
        own = shares(found, model)
        row: list[Any] = [model, YEARS[model]]
        for column in columns:
            row.append(own.get(column))
            if " of all" not in column:
                row.append(theirs.get(PAPER.get((model, column))))
        rows.append(row)
    header = ["model", "year"]
    for column in columns:
        beside = PAPER_HARDWARE if column == "latency" else "paper"
        header += [f"{column}, %"] + [beside] * (" of all" not in column)
    print(f"Measured on {hardware(arguments, found)}; batch 1, one core, TorchScript.\n")
    print(table(header, rows))
    names = [row[0] for row in rows]
    draw_bars(
        arguments.figures / "single_branch.png",
        names,
        {column: [shares(found, name).get(column) for name in names] for column in columns[:3]},
        y_label="in single-branch segments, %",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
