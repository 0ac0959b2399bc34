"""What refitting brings back: `python benchmarks/recovery.py [PART ...] [--images N] [--table]`.

Top-1 after pruning without training: as pruned, with BatchNorms renewed, and refitted without
labels. Parts: `ladder` (ResNet-56 at the export's multiply-accumulates divided by 1.35, 1.5 and
1.95), `grid` (ResNet-20 and 56, shares of weights, constraints, criteria), `images` (how many are
enough), `subjects` (the other trained networks) and `imagenet` (MobileNetV2, fitted on either half
of 1,000 images and tested on the other). Each result is a line of
`benchmarks/results/recovery.jsonl`; what is there is not measured again. `--table` prints them.
Multiply-accumulates are counted in the narrow export, where no read is widened.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cifar import trained
from benchmarks.data import DATA, imagenet, images, trained_mobilenet_v2
from upscale import Macs, Parameters, Recovery, export, mask, plan, recover, select
from upscale.model.batches import recalibrate

RECORDS = Path(__file__).resolve().parent / "results" / "recovery.jsonl"
BATCH, TEST = 128, 10_000
PARTS = ("ladder", "grid", "images", "subjects", "imagenet")
SUBJECTS = ("densenet", "inception", "squeezenet", "efficientnet", "mobilenet_v2", "mobilenet_v3")


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting; `share` is what goes, of the export's macs or of the masks' parameters."""

    part: str
    network: str
    measure: str
    share: float
    importance: str = "l1"
    scope: str = "local"
    constraint: str = "none"
    images: int = 1024
    test: int = TEST
    fold: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """Top-1 in percent; `macs` is the narrow export's share, `seconds` those of the refit."""

    unpruned: float
    pruned: float
    norms: float
    refitted: float
    macs: float
    seconds: float


def cells(part: str, test: int) -> Iterator[Cell]:
    """The settings of a part."""
    if part == "ladder":
        for divided in (1.35, 1.5, 1.95):
            for importance in ("l1", "reconstruction"):
                share = round(1 - 1 / divided, 4)
                yield Cell(part, "resnet56", "macs", share, importance, test=test)
    elif part == "grid":
        for network in ("resnet20", "resnet56"):
            for share in (0.2, 0.3, 0.5):
                for constraint in ("none", "contiguous", "segment"):
                    for importance in ("l1", "reconstruction"):
                        given = (part, network, "parameters", share, importance, "local")
                        yield Cell(*given, constraint, test=test)
    elif part == "images":
        for count in (64, 256, 1024, 4096):
            yield Cell(part, "resnet56", "macs", 0.3333, "l1", images=count, test=test)
    elif part == "subjects":
        for network in SUBJECTS:
            yield Cell(part, network, "parameters", 0.3, "reconstruction", test=test)
    elif part == "imagenet":
        for share in (0.05, 0.1, 0.2):
            for fold in (0, 1):
                given = (part, "imagenet", "macs", share, "reconstruction", "global", "none")
                yield Cell(*given, images=500, test=500, fold=fold)
    else:
        raise SystemExit(f"there is no part {part!r}; there are {', '.join(PARTS)}")


def network_of(cell: Cell) -> tuple[nn.Module, list[Tensor], list[tuple[Tensor, Tensor]]]:
    """A trained network, unlabelled images to fit to, and labelled ones to test on."""
    if cell.network == "imagenet":
        halves = [[c for c in range(1000) if c % 2 == own] for own in (cell.fold, 1 - cell.fold)]
        (fitted, _), (pictures, classes) = (imagenet(DATA, set(half)) for half in halves)
        model: Any = trained_mobilenet_v2(DATA)
        side = 50
    else:
        fitted, _ = images(DATA, "train", cell.images)
        pictures, classes = images(DATA, "test", cell.test)
        if cell.network.startswith("resnet"):
            model = trained(int(cell.network.removeprefix("resnet")), DATA)
        else:
            model = importlib.import_module("paper.subjects").trained(cell.network)
        side = BATCH
    laid_out = {"memory_format": torch.channels_last}
    fitted, pictures = (own.contiguous(**laid_out) for own in (fitted, pictures))
    test = list(zip(pictures.split(side), classes.split(side), strict=True))
    return model.to(**laid_out).eval(), list(fitted.split(side)), test


def top1(model: nn.Module, test: list[tuple[Tensor, Tensor]]) -> float:
    """Right answers, in percent."""
    with torch.inference_mode():
        right = sum(int((model(x).argmax(dim=1) == labels).sum()) for x, labels in test)
    return 100 * right / sum(len(labels) for _, labels in test)


def macs_of(model: nn.Module, example: Tensor) -> int:
    """The multiply-accumulates of all convolutions and linears, on an example."""
    total = 0

    def count(layer: Any, _: Any, made: Tensor) -> None:
        nonlocal total
        total += (
            layer.weight.numel() * made[0, 0].numel() if made.ndim > 2 else layer.weight.numel()
        )

    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.inference_mode():
        model(example)
    for hook in hooks:
        hook.remove()
    return total


def measured(cell: Cell) -> Result:
    """What one setting comes to."""
    model, batches, test = network_of(cell)
    x = batches[0][:1]
    amounts = {
        "macs": Macs(cell.share, exported=True),
        "parameters": Parameters(cell.share),
    }
    selection = select(
        *(model, x),
        amount=amounts[cell.measure],
        importance=cell.importance,
        scope=cell.scope,
        constraint=cell.constraint,
        data=batches,
    )
    masked = mask(model, selection)
    before = top1(masked, test)
    norms = top1(recalibrate(masked, batches), test)
    free = cell.constraint == "none" and cell.scope == "local"
    start = time.perf_counter()
    fitted = recover(
        *(model, selection, batches), choose=free and cell.importance == "reconstruction"
    )
    seconds = time.perf_counter() - start
    told = Recovery.of(fitted)
    assert told is not None
    pruned = export(fitted, plan(fitted, x, told.selections, widen=False))
    share = macs_of(pruned, x) / macs_of(model, x)
    return Result(top1(model, test), before, norms, top1(pruned, test), share, seconds)


def known() -> dict[Cell, Result]:
    """What was measured before."""
    if not RECORDS.is_file():
        return {}
    lines = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    return {Cell(**line["cell"]): Result(**line["result"]) for line in lines}


def table(found: dict[Cell, Result]) -> str:
    """A row for each result."""
    head = "part network pruned importance constraint images unpruned as-pruned norms refitted"
    columns = [*head.split(), "macs ÷", "s"]
    rows = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for c, r in found.items():
        cells = (
            *(c.part, c.network, f"{c.share:.1%} of {c.measure}", f"{c.importance}, {c.scope}"),
            *(c.constraint, c.images, f"{r.unpruned:.2f}", f"{r.pruned:.2f}", f"{r.norms:.2f}"),
            *(f"{r.refitted:.2f}", f"{1 / r.macs:.2f}", f"{r.seconds:.0f}"),
        )
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main() -> int:
    """Measure what has no record yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", default=["ladder", "grid", "images", "subjects", "imagenet"]
    )
    parser.add_argument("--images", type=int, default=TEST, help="test images of CIFAR-10")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found = known()
    for part in () if arguments.table else arguments.parts:
        for cell in cells(part, arguments.images):
            if cell in found:
                continue
            found[cell] = measured(cell)
            with RECORDS.open("a", encoding="utf-8") as records:
                line = {"cell": asdict(cell), "result": asdict(found[cell])}
                records.write(json.dumps(line) + "\n")
            print(table({cell: found[cell]}).splitlines()[-1], flush=True)
    print(table(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
