"""What refitting brings back: `python benchmarks/recovery.py [PART ...] [--images N] [--page]`.

Top-1 after pruning without training: as pruned, with BatchNorms renewed, and refitted without
labels. Parts: `ladder` (ResNet-56 at the export's multiply-accumulates divided by 1.35, 1.5 and
1.95), `grid` (ResNet-20 and 56, shares of weights, constraints, criteria), `images` (how many are
enough), `subjects` (the other trained networks), `imagenet` (MobileNetV2, fitted on either half
of 1,000 images and tested on the other), `tuning` (against training with labels for as long) and
`epoch` (for a whole epoch). Each result is a line of `benchmarks/results/recovery.jsonl`; what is
there is not measured again. `--only TEXT` takes the settings whose description has it. `--table`
prints all results; `--page` makes `docs/recovery.md` of them, and with matplotlib its plots.

Multiply-accumulates are counted in the narrow export, where no read is widened. Seconds are
processor time of one thread.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cifar import trained
from benchmarks.data import DATA, imagenet, images, trained_mobilenet_v2
from upscale import Macs, Parameters, Recovery, Selection, export, mask, plan, recover, select
from upscale.model.batches import recalibrate
from upscale.recovery.curves import curves
from upscale.recovery.elimination import Curve
from upscale.selection.importance import Study

RECORDS = Path(__file__).resolve().parent / "results" / "recovery.jsonl"
BATCH, TEST = 128, 10_000
PARTS = ("ladder", "grid", "images", "subjects", "imagenet", "tuning", "epoch")
SUBJECTS = ("densenet", "inception", "squeezenet", "efficientnet", "mobilenet_v2", "mobilenet_v3")
CRITERIA = ("reconstruction", "l1")
DIVIDED = (1.35, 1.5, 1.95)
SHARES = (0.3, 0.2, 0.5)
# Training with labels: SGD whose rate falls along half a cosine, as in `upscale.tuning.Recipe`.
RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-4


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
    """Top-1 in percent; `macs` is the narrow export's share, `seconds` those of the refit.

    `lost` counts the images that only the unpruned network gets right, `won` those that only the
    refitted one does. `tuned` is top-1 after training with labels for `tuned_seconds`.
    """

    unpruned: float
    pruned: float
    norms: float
    refitted: float
    macs: float
    seconds: float
    lost: int
    won: int
    tuned: float | None = None
    tuned_seconds: float | None = None


def cells(part: str, test: int) -> Iterator[Cell]:
    """The settings of a part."""
    if part == "ladder":
        for importance in CRITERIA:
            for divided in reversed(DIVIDED):
                share = round(1 - 1 / divided, 4)
                yield Cell(part, "resnet56", "macs", share, importance, test=test)
    elif part == "grid":
        for share in SHARES:
            for network in ("resnet56", "resnet20"):
                for importance in CRITERIA:
                    yield from of_grid(network, share, importance, test)
    elif part == "images":
        for count in (64, 256, 1024, 4096):
            given = (part, "resnet56", "macs", round(1 - 1 / DIVIDED[1], 4), "l1")
            yield Cell(*given, images=count, test=test)
    elif part == "subjects":
        for network in SUBJECTS:
            if weights_of(network).is_file():
                yield Cell(part, network, "parameters", 0.3, "reconstruction", test=test)
    elif part == "imagenet":
        for share in (0.1, 0.05, 0.2):
            for fold in (0, 1):
                given = (part, "imagenet", "macs", share, "reconstruction", "global", "none")
                yield Cell(*given, images=500, test=500, fold=fold)
    elif part in ("tuning", "epoch"):
        for network in ("resnet56", "densenet"):
            yield Cell(part, network, "parameters", 0.3, "reconstruction", test=test)
    else:
        raise SystemExit(f"there is no part {part!r}; there are {', '.join(PARTS)}")


def of_grid(network: str, share: float, importance: str, test: int) -> Iterator[Cell]:
    """One share of weights by each constraint; and free layers at the macs that `segment` is left.

    The same share of weights leaves fewer multiply-accumulates where all readers agree, since their
    producers shrink too. So `segment` comes first, and free layers are pruned to its export's.
    """
    given = ("grid", network, "parameters", share, importance, "local")
    for constraint in ("segment", "none"):
        yield Cell(*given, constraint, test=test)
    cell = Cell(*given, "segment", test=test)
    if cell in known():
        yield equal_to(cell, known()[cell])
    yield Cell(*given, "contiguous", test=test)


def equal_to(cell: Cell, result: Result) -> Cell:
    """The setting with free layers and as many multiply-accumulates as another's export has."""
    return replace(cell, measure="macs", share=round(1 - result.macs, 4), constraint="none")


def weights_of(network: str) -> Path:
    """Where a subject's weights lie, if it has any."""
    folder: Path = importlib.import_module("paper.subjects").WEIGHTS
    return folder / f"{network}-cifar10.safetensors"


def network_of(cell: Cell) -> tuple[nn.Module, list[Tensor], list[tuple[Tensor, Tensor]]]:
    """A trained network, unlabelled images to fit to, and labelled ones to test on."""
    if cell.network == "imagenet":
        halves = [[c for c in range(1000) if c % 2 == own] for own in (cell.fold, 1 - cell.fold)]
        (fitted, _), (pictures, classes) = (imagenet(DATA, set(half)) for half in halves)
        model: Any = trained_mobilenet_v2(DATA)
        side = 20  # so that what a batch makes fits into memory, and places are weighed
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


def right(model: nn.Module, test: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Whether each answer is right."""
    with torch.inference_mode():
        return torch.cat([model(x).argmax(dim=1) == labels for x, labels in test])


def percent(answers: Tensor) -> float:
    """The share that is right."""
    return 100 * float(answers.double().mean())


@cache
def unpruned_answers(network: str, test: int, fold: int) -> Tensor:
    """Whether each answer of a network is right before it is pruned."""
    model, _, pictures = network_of(Cell("", network, "macs", 0.0, images=1, test=test, fold=fold))
    return right(model, pictures)


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
        importance=criterion(cell),
        scope=cell.scope,
        constraint=cell.constraint,
        data=batches,
    )
    masked = mask(model, selection)
    before = percent(right(narrow(model, x, selection), test))
    norms = percent(right(narrow(recalibrate(masked, batches), x, selection), test))
    free = cell.constraint == "none" and cell.scope == "local"
    start = time.process_time()
    fitted = recover(
        *(model, selection, batches), choose=free and cell.importance == "reconstruction"
    )
    seconds = time.process_time() - start
    told = Recovery.of(fitted)
    assert told is not None
    pruned = narrow(fitted, x, *told.selections)
    share = macs_of(pruned, x) / macs_of(model, x)
    first = unpruned_answers(cell.network, cell.test, cell.fold)
    answers = right(pruned, test)
    lost, won = int((first & ~answers).sum()), int((answers & ~first).sum())
    whole, own = percent(first), percent(answers)
    result = Result(whole, before, norms, own, share, seconds, lost, won)
    if cell.part not in ("tuning", "epoch"):
        return result
    limit = seconds if cell.part == "tuning" else math.inf
    tuned, taken = tuned_for(mask(model, selection), limit)
    return replace(result, tuned=percent(right(tuned, test)), tuned_seconds=taken)


@dataclass(frozen=True, slots=True)
class ByCurves:
    """Importance `"reconstruction"`, of curves that are known."""

    curves: Mapping[str, Curve]
    comparable: bool = True
    costs: bool = True

    def score(self, study: Study) -> dict[str, Tensor]:
        """What each channel costs, as far as layers have curves."""
        named = self.curves.keys() & set(study.names)
        return {name: torch.tensor(self.curves[name].costs) for name in named}


def criterion(cell: Cell) -> str | ByCurves:
    """What a setting's channels are chosen by; curves of a network are measured once."""
    if cell.importance != "reconstruction":
        return cell.importance
    return ByCurves(curves_of(cell.network, cell.images, cell.fold))


@cache
def curves_of(network: str, count: int, fold: int) -> Mapping[str, Curve]:
    """The curves of a network on so many images."""
    cell = Cell("", network, "macs", 0.0, images=count, test=1, fold=fold)
    model, batches, _ = network_of(cell)
    return curves(model, batches)


def narrow(model: nn.Module, x: Tensor, *selections: Selection) -> nn.Module:
    """The export of a model that computes what the masked one does, with no read widened."""
    return export(model, plan(model, x, selections, widen=False))


def tuned_for(model: nn.Module, seconds: float) -> tuple[nn.Module, float]:
    """A masked model trained with labels for some seconds, or an epoch if that is less.

    Images are moved by up to four pixels and mirrored, as these networks were trained.
    """
    pictures, classes = images(DATA, "train", 50_000)
    torch.manual_seed(0)
    steps = torch.randperm(len(pictures)).split(BATCH)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=MOMENTUM, weight_decay=DECAY)
    model.train()
    start, taken = time.process_time(), 0.0
    for number, step in enumerate(steps):
        done = max(taken / seconds, number / len(steps))
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * done)) / 2
        loss = F.cross_entropy(model(moved(pictures[step])), classes[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken = time.process_time() - start
    return model.eval(), taken


def moved(pictures: Tensor) -> Tensor:
    """Pictures moved by up to four pixels, and half of them mirrored."""
    side, padded = pictures.shape[-1], F.pad(pictures, (4, 4, 4, 4))
    down, right = torch.randint(0, 9, (2, len(pictures))).tolist()
    cut = [p[:, d : d + side, r : r + side] for p, d, r in zip(padded, down, right, strict=True)]
    shown = torch.stack(cut)
    mirrored = torch.where(torch.rand(len(cut), 1, 1, 1) < 0.5, shown.flip(-1), shown)
    return mirrored.contiguous(memory_format=torch.channels_last)


def known() -> dict[Cell, Result]:
    """What was measured before."""
    if not RECORDS.is_file():
        return {}
    lines = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    return {Cell(**line["cell"]): Result(**line["result"]) for line in lines}


def record(cell: Cell, result: Result) -> None:
    """Keep what was measured."""
    RECORDS.parent.mkdir(exist_ok=True)
    with RECORDS.open("a", encoding="utf-8") as records:
        records.write(json.dumps({"cell": asdict(cell), "result": asdict(result)}) + "\n")


def main() -> int:
    """Measure what has no record yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART")
    parser.add_argument("--images", type=int, default=TEST, help="test images of CIFAR-10")
    parser.add_argument("--only", default="", help="a text that a setting's description has")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parser.add_argument("--page", action="store_true", help="write the page of what was measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    written: Any = importlib.import_module("benchmarks.recovery_page")
    if arguments.page:
        written.write(known())
        return 0
    for part in () if arguments.table else arguments.parts:
        for cell in cells(part, arguments.images):
            # Another process may be at it as well.
            if cell in known() or arguments.only not in str(cell):
                continue
            result = measured(cell)
            record(cell, result)
            print(cell, result, flush=True)
    if arguments.table:
        print(written.table(known()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
