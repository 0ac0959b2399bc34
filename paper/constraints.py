"""Accuracy against measured latency, by constraint: `python -m paper.constraints [--quick]`.

ResNet-56 and the DenseNet, pruned by L2 with no constraint, with windows (`contiguous`), by
segment, and by Torch-Pruning's `MagnitudePruner` (of the same norm; left out where it is not
installed): top-1 without fine-tuning against the latency of the traced model, one core,
channels-last, each raced against the unpruned model. A share of the channels is asked for; what it
is worth in latency differs from one to the next, and that is what is compared.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from paper.common import Found, amounts_of, hardware, measure, name_of, parse, table
from paper.drawing import BOUND, COLOURS, OTHER, OURS, Line, Panel, draw
from paper.nets import images_of, nets
from paper.train_subjects import top1
from upscale.pruning import race_models
from upscale.sweep import Grid, Metric, Trial

MODELS = ("resnet56", "densenet")
AMOUNTS = (0.05, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.50)
CONSTRAINTS = ("none", "contiguous", "segment")
PEER, PEER_METRIC = "Torch-Pruning", "paper.constraints:torch_pruning"
STYLES = {"none": OURS, "contiguous": OURS, "segment": OTHER, PEER: BOUND}

# By model, way and amount: top-1, and the latency as a share of the unpruned model's.
Points = dict[tuple[str, str, float], dict[str, float]]


def has_peer() -> bool:
    """Whether Torch-Pruning is installed."""
    return importlib.util.find_spec("torch_pruning") is not None


def by_torch_pruning(trial: Trial) -> dict[str, Any]:
    """Top-1 and latency of a model that Torch-Pruning pruned, layer by layer."""
    peer: Any = importlib.import_module("torch_pruning")
    model = copy.deepcopy(trial.model)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    pruner = peer.pruner.MagnitudePruner(
        model,
        trial.example,
        importance=peer.importance.MagnitudeImportance(p=2),
        pruning_ratio=trial.cell.amount,
        global_pruning=False,
        ignored_layers=linears[-1:],
    )
    pruner.step()
    models = {"unpruned": trial.model, "exported": model.eval()}
    taken = race_models(models, trial.example, trial.target, runs=trial.cell.runs)
    ratio = taken["exported"].median_ms / taken["unpruned"].median_ms
    return {"top1_percent": top1(model, list(trial.data)), "ratio": ratio}


torch_pruning = Metric(by_torch_pruning, alone=True, selects=False)


def grids(arguments: argparse.Namespace) -> list[Grid]:
    """Accuracy and latency of the same selections, and the peer's."""
    every = nets(arguments)
    chosen = every if arguments.quick else [net for net in every if net.name in MODELS] or every
    amounts = amounts_of(arguments, AMOUNTS, quick=(0.1, 0.3))
    timed = {
        "runtime": "torchscript",
        "memory_format": "channels_last",
        "runs": 5 if arguments.quick else 100,
    }
    found = []
    for net in chosen:
        settings = {**net.settings, "amount": amounts}
        for metric in ("accuracy", "latency"):
            own = {**settings, "constraint": list(CONSTRAINTS), "metric": metric}
            found.append(Grid({**own, **timed} if metric == "latency" else own))
        if has_peer():
            found.append(Grid({**settings, **timed, "metric": PEER_METRIC}))
    return found


def points(found: Found) -> Points:
    """What was measured, by model, way and amount."""
    points: Points = {}
    for cell, result in found.items():
        way = PEER if cell.metric == PEER_METRIC else cell.constraint
        own = points.setdefault((name_of(cell), way, cell.amount), {})
        own |= {name: result[name] for name in ("top1_percent", "ratio") if name in result}
    return points


def rows(points: Points) -> Iterator[Sequence[Any]]:
    """A row for each model and amount: latency and accuracy, way by way."""
    for model, amount in sorted({(model, amount) for model, _, amount in points}):
        row: list[Any] = [model, f"{100 * amount:g}"]
        for way in STYLES:
            own = points.get((model, way, amount), {})
            ratio = own.get("ratio")
            row += [None if ratio is None else f"{ratio:.2f}", own.get("top1_percent")]
        yield row


def panels(points: Points) -> list[Panel]:
    """A panel for each model: accuracy by latency."""
    found = []
    for model in sorted({model for model, _, _ in points}):
        lines = [
            Line(
                way,
                [
                    (own["ratio"], own["top1_percent"])
                    for (name, kind, _), own in sorted(points.items())
                    if (name, kind) == (model, way) and len(own) == 2
                ],
                style,
                COLOURS[turn],
            )
            for turn, (way, style) in enumerate(STYLES.items())
        ]
        found.append(Panel(model, [line for line in lines if line.points]))
    return found


def main() -> int:
    """Measure, print and draw."""
    arguments = parse(__doc__)
    found = measure(arguments, grids(arguments))
    images = images_of(arguments)
    told = points(found)
    print(f"Measured on {hardware(arguments, found)}; batch 1, one core, channels-last, traced.\n")
    header = ["model", "channels pruned, %"]
    for way in STYLES:
        header += [f"{way}: latency ÷ unpruned", f"top-1, {images}"]
    print(table(header, rows(told)))
    if not has_peer():
        print("\nTorch-Pruning is left out: pip install torch-pruning")
    draw(
        arguments.figures / "constraints.png",
        panels(told),
        x_label="latency ÷ unpruned",
        y_label=f"top-1, {images}, %",
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
