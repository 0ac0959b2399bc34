"""The paper's fine-tuning, as metrics that a grid can name, and as a command for many processes.

`paper.tuning:one_epoch` is the protocol of the appendix on multi-branch segments,
`paper.tuning:five_epochs` that of the appendix on fine-tuning; both record top-1 after every epoch.
The same for one setting, on several processes, resumable and with any folder of images:

    accelerate launch -m paper.tuning --model torchvision:resnet50 --weights resnet50.safetensors \
        --folder images --shape 1,3,224,224 --amount 0.3 --checkpoints tuned

`images` holds `train/CLASS/*` and `val/CLASS/*`; without `--folder` it is the CIFAR-10 data.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset

from upscale.lab.sources import SourceError, imported
from upscale.sweep import Cell, Metric, Trial
from upscale.tuning import Epoch, Recipe, tune


@dataclass(frozen=True, slots=True)
class Preset:
    """A protocol of the paper: how to train, and what was pruned by how much."""

    recipe: Recipe
    importance: str
    scope: str
    amounts: tuple[float, ...]


PRESETS = {
    "multi-branch": Preset(
        Recipe(epochs=1), "l2", "local", tuple(round(0.1 * step, 1) for step in range(1, 10))
    ),
    "fine-tuning": Preset(
        Recipe(epochs=5), "lamp", "global", tuple(round(0.1 * step, 1) for step in range(1, 6))
    ),
}
# The training images that belong to the images which accuracy is measured on.
TRAINING = {
    "paper.lossless:test": "paper.lossless:training",
    "paper.lossless:part_of_test": "paper.lossless:part_of_training",
    "paper.lossless:some_test": "paper.lossless:some_training",
    "paper.imagenet:validation": "paper.imagenet:training",
    "paper.imagenet:some_validation": "paper.imagenet:some_training",
}


def tuned(trial: Trial, recipe: Recipe) -> dict[str, Any]:
    """Top-1 of the trial's masked model after each epoch, and after the last."""
    data = trial.cell.data or ""
    if data not in TRAINING:
        raise SourceError(f"there are no training images for {data}; known: {', '.join(TRAINING)}")
    train: Dataset[Any] = imported(TRAINING[data])()
    recipe = replace(recipe, seed=trial.cell.seed)
    epochs = tune(trial.masked, train, held_out(trial), recipe)
    return {"top1_percent": epochs[-1].top1_percent, "epochs": [asdict(epoch) for epoch in epochs]}


def held_out(trial: Trial) -> Dataset[Any]:
    """The images of the trial's data, one by one."""
    found = imported(str(trial.cell.data))()
    if isinstance(found, DataLoader):
        return found.dataset
    return ConcatDataset([TensorDataset(*pair) for pair in found])


one_epoch = Metric(partial(tuned, recipe=PRESETS["multi-branch"].recipe))
five_epochs = Metric(partial(tuned, recipe=PRESETS["fine-tuning"].recipe))


def main() -> int:
    """Prune one model, fine-tune it, and print what each epoch came to."""
    arguments = _arguments()
    preset = PRESETS[arguments.preset]
    if arguments.folder is not None:
        os.environ["UPSCALE_IMAGENET"] = str(arguments.folder)
    where = "paper.lossless" if arguments.folder is None else "paper.imagenet"
    some = "some_" if arguments.quick else ""
    data = f"{where}:{some}{'test' if arguments.folder is None else 'validation'}"
    cell = Cell(
        model=arguments.model,
        weights=arguments.weights,
        shape=arguments.shape,
        metric="paper.tuning:one_epoch",
        amount=arguments.amount,
        of="parameters",
        importance=preset.importance,
        scope=preset.scope,
        constraint=arguments.constraint,
        data=data,
    )
    trial = Trial(cell)
    recipe = preset.recipe
    for name in ("epochs", "rate", "batch"):
        if getattr(arguments, name) is not None:
            recipe = replace(recipe, **{name: getattr(arguments, name)})
    train: Dataset[Any] = imported(TRAINING[data])()

    def tell(epoch: Epoch) -> None:
        top1 = f"top-1 {epoch.top1_percent:.2f}%"
        print(f"epoch {epoch.number}: loss {epoch.loss:.4f}, {top1}", flush=True)

    tune(
        trial.masked,
        train,
        held_out(trial),
        recipe,
        checkpoints=arguments.checkpoints,
        tell=tell,
        workers=arguments.loaders,
    )
    if arguments.output is not None and int(os.environ.get("RANK", "0")) == 0:
        torch.save(trial.masked.state_dict(), arguments.output)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="multi-branch")
    parser.add_argument("--model", default="paper.cifar:resnet20", help="as in a sweep")
    parser.add_argument("--weights", help="a file of weights, where the model has none")
    parser.add_argument("--shape", default="1,3,32,32")
    parser.add_argument("--folder", type=Path, help="train/CLASS/* and val/CLASS/*")
    parser.add_argument("--amount", type=float, default=0.3, help="share of parameters")
    parser.add_argument("--constraint", choices=("none", "segment", "contiguous"), default="none")
    parser.add_argument("--epochs", type=int, help="if not the preset's")
    parser.add_argument("--rate", type=float, help="if not the preset's")
    parser.add_argument("--batch", type=int, help="of all processes together")
    parser.add_argument("--loaders", type=int, default=0, help="processes that load images")
    parser.add_argument("--checkpoints", type=Path, help="where to go on from, if stopped")
    parser.add_argument("--output", type=Path, help="where to put the trained weights")
    parser.add_argument("--quick", action="store_true", help="a thousand images")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
