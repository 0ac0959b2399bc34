"""Accuracy against measured latency, by constraint: `python -m paper.constraints [--quick]`.

ResNet-56 and the DenseNet, pruned by L2 with no constraint, with windows (`contiguous`), by
segment, in single-branch segments alone, and by Torch-Pruning's `MagnitudePruner` (of the same
norm; left out where it is not installed): top-1 without fine-tuning against the latency of the
traced model, one core, channels-last, one image or 32 at a time, each raced against the unpruned
model. A share of the channels is asked for; what it is worth in latency differs from one to the
next, and that is what is compared.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from torch import nn

from paper.common import (
    Found,
    ahead,
    amounts_of,
    hardware,
    measure,
    name_of,
    parse,
    signed,
    table,
)
from paper.drawing import BOUND, COLOURS, OTHER, OURS, Line, Panel, draw
from paper.nets import images_of, nets
from paper.single_branch import single_branch_layers
from paper.tradeoff import parts
from paper.train_subjects import top1
from upscale.sweep import Cell, Grid, Metric, Trial
from upscale.targets.racing import race_models

MODELS = ("resnet56", "densenet")
AMOUNTS = (0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50)
PEER, PEER_METRIC = "Torch-Pruning", "paper.constraints:torch_pruning"
# Ways to prune, and the settings that make them.
WAYS = {
    "none": {"constraint": "none"},
    "contiguous": {"constraint": "contiguous"},
    "segment": {"constraint": "segment"},
    "single-branch": {"segments": "single-branch"},
}
STYLES = {"none": OURS, "contiguous": OURS, "segment": OTHER, "single-branch": OTHER, PEER: BOUND}
# Runs of a race, by how many images are taken at once.
RUNS = {1: 100, 32: 20}

# By model, way and amount: top-1, and by batch the latency as a share of the unpruned model's.
Points = dict[tuple[str, str, float], dict[str | int, float]]


def has_peer() -> bool:
    """Whether Torch-Pruning is installed."""
    return importlib.util.find_spec("torch_pruning") is not None


def by_torch_pruning(trial: Trial) -> dict[str, Any]:
    """Top-1 and latency of a model that Torch-Pruning pruned, layer by layer.

    Where it leaves a model that does not run, it is told to leave the layers alone whose output
    is shared, as its user would have to.
    """
    layers = {
        name: module
        for name, module in trial.model.named_modules()
        if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear))
    }
    last = list(layers)[-1]
    model, segments = _pruned_by_peer(trial, {last}), "all"
    if not _runs(model, trial):
        shared = {*layers} - single_branch_layers(trial)
        model, segments = _pruned_by_peer(trial, {last, *shared}), "single-branch"
    models = {"unpruned": trial.model, "exported": model}
    taken = race_models(models, trial.example, trial.target, runs=trial.cell.runs)
    ratio = taken["exported"].median_ms / taken["unpruned"].median_ms
    top = top1(model, list(trial.data))
    return {"top1_percent": top, "ratio": ratio, "segments": segments}


def _pruned_by_peer(trial: Trial, ignored: Collection[str]) -> nn.Module:
    peer: Any = importlib.import_module("torch_pruning")
    model = copy.deepcopy(trial.model)
    pruner = peer.pruner.MagnitudePruner(
        model,
        trial.example,
        importance=peer.importance.MagnitudeImportance(p=2),
        pruning_ratio=trial.cell.amount,
        global_pruning=False,
        ignored_layers=[model.get_submodule(name) for name in ignored],
    )
    pruner.step()
    return model.eval()


def _runs(model: nn.Module, trial: Trial) -> bool:
    try:
        model(trial.example)
    except RuntimeError:
        return False
    return True


torch_pruning = Metric(by_torch_pruning, alone=True, selects=False)


def grids(arguments: argparse.Namespace) -> list[Grid]:
    """Accuracy and latency of the same selections, and the peer's."""
    every = nets(arguments)
    chosen = every if arguments.quick else [net for net in every if net.name in MODELS] or every
    amounts = amounts_of(arguments, AMOUNTS, quick=(0.1, 0.3))
    found = []
    for net in chosen:
        own = {**net.settings, "amount": amounts}
        there = parts(net.untrained, net.shape)
        ways = [way for way, how in WAYS.items() if how.get("segments", "all") in there]
        found += [Grid({**own, **WAYS[way], "metric": "accuracy"}) for way in ways]
        for batch, runs in RUNS.items():
            timed = {
                **own,
                "shape": ",".join([str(batch), *net.shape.split(",")[1:]]),
                "runtime": "torchscript",
                "memory_format": "channels_last",
                "runs": 5 if arguments.quick else runs,
            }
            found += [Grid({**timed, **WAYS[way], "metric": "latency"}) for way in ways]
            if has_peer():
                found.append(Grid({**timed, "metric": PEER_METRIC}))
    return found


def way_of(cell: Cell) -> str:
    """How a cell was pruned."""
    if cell.metric == PEER_METRIC:
        return PEER
    return cell.segments if cell.segments in WAYS else cell.constraint


def points(found: Found) -> Points:
    """What was measured, by model, way and amount."""
    points: Points = {}
    for cell, result in found.items():
        own = points.setdefault((name_of(cell), way_of(cell), cell.amount), {})
        if "top1_percent" in result:
            own["top1"] = result["top1_percent"]
        if "ratio" in result:
            own[cell.sizes[0]] = result["ratio"]
    return points


def partly(found: Found) -> list[str]:
    """The models of which the peer pruned single-branch segments alone."""
    names = (name_of(cell) for cell, own in found.items() if own.get("segments") == "single-branch")
    return sorted({*names})


def rows(points: Points) -> Iterator[Sequence[Any]]:
    """A row for each model and amount: accuracy and latencies, way by way."""
    for model, amount in sorted({(model, amount) for model, _, amount in points}):
        row: list[Any] = [model, f"{100 * amount:g}"]
        for way in STYLES:
            own = points.get((model, way, amount))
            row.append(None if own is None else _told(own))
        yield row


def _told(own: Mapping[str | int, float]) -> str:
    ratios = ", ".join(f"{own[batch]:.2f}" if batch in own else "–" for batch in RUNS)
    return f"{own['top1']:.1f} at {ratios}" if "top1" in own else f"– at {ratios}"


def curve(points: Points, model: str, way: str, batch: int) -> list[tuple[float, float]]:
    """Latency and accuracy of a model, pruned one way."""
    return [
        (own[batch], own["top1"])
        for (name, kind, _), own in sorted(points.items())
        if (name, kind) == (model, way) and batch in own and "top1" in own
    ]


def gains(points: Points) -> Iterator[Sequence[Any]]:
    """For each model and batch the points that a way is ahead of `segment` at the same latency."""
    for model, batch in product(sorted({model for model, _, _ in points}), RUNS):
        bound = curve(points, model, "segment", batch)
        ways = (way for way in STYLES if way != "segment")
        others = (signed(ahead(curve(points, model, way, batch), bound)) for way in ways)
        yield [model, batch, *others]


def panels(points: Points) -> list[Panel]:
    """A panel for each model and batch: accuracy by latency."""
    found = []
    for model, batch in product(sorted({model for model, _, _ in points}), RUNS):
        lines = [
            Line(way, curve(points, model, way, batch), style, COLOURS[turn])
            for turn, (way, style) in enumerate(STYLES.items())
        ]
        title = f"{model}, batch {batch}"
        found.append(Panel(title, [line for line in lines if line.points]))
    return found


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    images = images_of(arguments)
    told = points(found)
    print(f"Measured on {hardware(arguments, found)}; one core, channels-last, traced.\n")
    batches = " and ".join(str(batch) for batch in RUNS)
    print(f"Top-1 in percent ({images}) at latency ÷ unpruned, batch {batches}:\n")
    print(table(["model", "channels pruned, %", *STYLES], rows(told)))
    print("\nMinus `segment`, mean points of top-1 at the same latency:\n")
    print(table(["model", "batch", *(way for way in STYLES if way != "segment")], gains(told)))
    if not has_peer():
        print("\nTorch-Pruning is left out: pip install torch-pruning")
    for model in partly(found):
        print(f"\n{PEER} breaks {model} unless it leaves shared channels alone, as it does here.")
    draw(
        arguments.figures / "constraints.png",
        panels(told),
        x_label="latency ÷ unpruned",
        y_label=f"top-1, {images}, %",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
