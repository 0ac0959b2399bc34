"""Fine-tuning of masked models with Hugging Face Accelerate: one process or many, resumable.

Nothing else in the package needs it: `pip install upscale[tune]`. Started by `accelerate launch` or
by `torchrun`, every process calls `tune` alike. A batch is divided among them, so that their number
changes how fast it goes and, to rounding, not what is learned. BatchNorms are the exception: they
look at their own process's part alone, so keep the parts large, or use `SyncBatchNorm` on GPUs.
"""

from __future__ import annotations

import importlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from upscale.errors import UpscaleError

STATE = "progress.json"


class TuningError(UpscaleError):
    """Fine-tuning cannot start, or cannot go on from where it was."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train: SGD with momentum, its rate falling along half a cosine to nothing.

    `batch` is that of all processes together.
    """

    epochs: int = 1
    rate: float = 0.01
    batch: int = 128
    momentum: float = 0.9
    decay: float = 5e-4
    seed: int = 0

    def rate_at(self, done: float) -> float:
        """The rate when this share of all steps is done.

        >>> Recipe(rate=0.1).rate_at(0.5)
        0.05
        """
        return round(self.rate * (1 + math.cos(math.pi * done)) / 2, 12)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What an epoch came to: the mean loss while it was trained, top-1 in percent after it."""

    number: int
    loss: float
    top1_percent: float
    seconds: float


def tune(
    model: nn.Module,
    train: Dataset[Any],
    test: Dataset[Any],
    recipe: Recipe,
    *,
    checkpoints: Path | None = None,
    tell: Callable[[Epoch], None] | None = None,
    workers: int = 0,
) -> tuple[Epoch, ...]:
    """Train a masked model in place, whose masks hold, and give what every epoch came to.

    Parameters
    ----------
    model
        What `upscale.mask` gives, or any classifier.
    train, test
        Datasets of inputs and classes, such as torchvision's `ImageFolder`.
    recipe
        How to train.
    checkpoints
        A folder for the state after each epoch. If it holds one of the same recipe, training goes
        on from there and ends as if it had never stopped.
    tell
        Called by the first process after each epoch, when its checkpoint is written.
    workers
        Processes that load images, for each process that trains.

    """
    accelerator = _accelerator()
    share, left = divmod(recipe.batch, accelerator.num_processes)
    if left or not share:
        raise TuningError(
            f"a batch of {recipe.batch} cannot be divided among {accelerator.num_processes} "
            "processes; take a multiple of their number"
        )
    # Each process draws its own augmentation and dropout.
    torch.manual_seed(recipe.seed + accelerator.process_index)
    optimizer = torch.optim.SGD(
        model.parameters(), recipe.rate, momentum=recipe.momentum, weight_decay=recipe.decay
    )
    # Accelerate wraps the model only where several processes train it.
    wrapped, prepared = accelerator.prepare(model, optimizer)
    epochs = _resume(accelerator, checkpoints, recipe)
    for number in range(len(epochs) + 1, recipe.epochs + 1):
        start = time.perf_counter()
        loss = _train(accelerator, wrapped, prepared, train, recipe, number, workers)
        _agree(accelerator, model)
        # Not the wrapped one: processes may have more or fewer batches to look at than others.
        top1 = _top1(accelerator, model, test, share, workers)
        epochs.append(Epoch(number, loss, top1, time.perf_counter() - start))
        if checkpoints is not None:
            _save(accelerator, checkpoints, recipe, epochs)
        if tell is not None and accelerator.is_main_process:
            tell(epochs[-1])
    model.eval()
    return tuple(epochs)


def batches(size: int, recipe: Recipe, number: int) -> list[Tensor]:
    """The images of each batch in an epoch: an order of the seed's and the epoch's own.

    What is left over after the last whole batch waits for another epoch.

    >>> [len(batch) for batch in batches(10, Recipe(batch=4), 1)]
    [4, 4]
    """
    generator = torch.Generator().manual_seed(1_000_003 * recipe.seed + number)
    order = torch.randperm(size, generator=generator)
    return [batch for batch in order.split(recipe.batch) if len(batch) == recipe.batch]


def _train(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    train: Dataset[Any],
    recipe: Recipe,
    number: int,
    workers: int,
) -> float:
    """One epoch; the mean loss of its batches, over all processes."""
    model.train()
    every = batches(_size(train), recipe, number)
    if not every:
        raise TuningError(f"{_size(train)} images make no batch of {recipe.batch}")
    own = [
        batch[accelerator.process_index :: accelerator.num_processes].tolist() for batch in every
    ]
    total = torch.zeros((), device=accelerator.device)
    for turn, (inputs, labels) in enumerate(_loader(train, own, workers)):
        done = (number - 1 + turn / len(every)) / recipe.epochs
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(done)
        found = model(inputs.to(accelerator.device))
        loss = F.cross_entropy(found, labels.to(accelerator.device))
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        total += loss.detach()
    mean: Tensor = accelerator.reduce(total, "mean")
    return float(mean) / len(every)


def _agree(accelerator: Any, model: nn.Module) -> None:
    """Give every process the first one's running statistics, as every step of training does."""
    if accelerator.num_processes > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)


def _top1(
    accelerator: Any, model: nn.Module, test: Dataset[Any], batch: int, workers: int
) -> float:
    """Right answers in percent, each process counting its own part."""
    model.eval()
    own = range(accelerator.process_index, _size(test), accelerator.num_processes)
    parts = [list(own[first : first + batch]) for first in range(0, len(own), batch)]
    right = torch.zeros((), device=accelerator.device)
    with torch.no_grad():
        for inputs, labels in _loader(test, parts, workers):
            found = model(inputs.to(accelerator.device)).argmax(dim=1)
            right += (found == labels.to(accelerator.device)).sum()
    total: Tensor = accelerator.reduce(right, "sum")
    return 100 * float(total) / _size(test)


def _loader(images: Dataset[Any], parts: Sequence[list[int]], workers: int) -> DataLoader[Any]:
    return DataLoader(images, batch_sampler=parts, num_workers=workers)


def _size(images: Dataset[Any]) -> int:
    return len(images)  # type: ignore[arg-type]  # datasets that can be drawn from have a length


def _accelerator() -> Any:
    try:
        accelerate: Any = importlib.import_module("accelerate")
    except ModuleNotFoundError as error:
        raise TuningError(
            f"fine-tuning needs accelerate ({error}): pip install upscale[tune]"
        ) from error
    return accelerate.Accelerator()


def _save(accelerator: Any, folder: Path, recipe: Recipe, epochs: Sequence[Epoch]) -> None:
    """Write a checkpoint beside the last one, name it when it is whole, drop the last one then."""
    whole = folder / f"epoch-{len(epochs)}"
    partial = folder / f"{whole.name}.partial"
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        told = {"recipe": asdict(recipe), "epochs": [asdict(epoch) for epoch in epochs]}
        (partial / STATE).write_text(json.dumps(told, indent=2), encoding="utf-8")
        shutil.rmtree(whole, ignore_errors=True)
        partial.rename(whole)
        for older in folder.glob("epoch-*"):
            if older != whole:
                shutil.rmtree(older, ignore_errors=True)
    accelerator.wait_for_everyone()


def _resume(accelerator: Any, folder: Path | None, recipe: Recipe) -> list[Epoch]:
    """Load the last checkpoint, if there is one, and what its epochs came to."""
    found = [] if folder is None else [p.parent for p in folder.glob(f"epoch-*/{STATE}")]
    found = [path for path in found if path.name.removeprefix("epoch-").isdecimal()]
    if not found:
        return []
    last = max(found, key=lambda path: int(path.name.removeprefix("epoch-")))
    try:
        told = json.loads((last / STATE).read_text(encoding="utf-8"))
        epochs = [Epoch(**epoch) for epoch in told["epochs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TuningError(f"{last / STATE} is no record of ours: {error}") from error
    if told.get("recipe") != asdict(recipe):
        raise TuningError(
            f"{last} was trained by another recipe ({told.get('recipe')}); take another folder"
        )
    accelerator.load_state(str(last))
    return epochs
