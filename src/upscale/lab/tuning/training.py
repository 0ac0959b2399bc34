"""Training: epochs of a recipe on one process or many, each followed by a checkpoint."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from upscale.lab.tuning.checkpoints import Checkpoints
from upscale.lab.tuning.identity import size_of
from upscale.lab.tuning.recipes import Epoch, Recipe, TuningError


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
        A folder for the state after each epoch. If it holds one of the same model, masks, recipe
        and data, training goes on from there and ends as if it had never stopped; one of anything
        else is refused.
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
    kept = None
    if checkpoints is not None:
        kept = Checkpoints.of(Path(checkpoints), model, train, test, recipe)
    # Each process draws its own augmentation and dropout.
    torch.manual_seed(recipe.seed + accelerator.process_index)
    optimizer = torch.optim.SGD(
        model.parameters(), recipe.rate, momentum=recipe.momentum, weight_decay=recipe.decay
    )
    # Accelerate wraps the model only where several processes train it.
    wrapped, prepared = accelerator.prepare(model, optimizer)
    epochs: list[Epoch] = []
    if kept is not None:
        epochs, kept = kept.resume(accelerator)
    for number in range(len(epochs) + 1, recipe.epochs + 1):
        start = time.perf_counter()
        loss = _train(accelerator, wrapped, prepared, train, recipe, number, workers)
        _agree(accelerator, model)
        # Not the wrapped one: processes may have more or fewer batches to look at than others.
        top1 = _top1(accelerator, model, test, share, workers)
        epochs.append(Epoch(number, loss, top1, time.perf_counter() - start))
        if kept is not None:
            kept.save(accelerator, epochs)
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
    every = batches(size_of(train), recipe, number)
    if not every:
        raise TuningError(f"{size_of(train)} images make no batch of {recipe.batch}")
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
    own = range(accelerator.process_index, size_of(test), accelerator.num_processes)
    parts = [list(own[first : first + batch]) for first in range(0, len(own), batch)]
    right = torch.zeros((), device=accelerator.device)
    with torch.no_grad():
        for inputs, labels in _loader(test, parts, workers):
            found = model(inputs.to(accelerator.device)).argmax(dim=1)
            right += (found == labels.to(accelerator.device)).sum()
    total: Tensor = accelerator.reduce(right, "sum")
    return 100 * float(total) / size_of(test)


def _loader(images: Dataset[Any], parts: Sequence[list[int]], workers: int) -> DataLoader[Any]:
    return DataLoader(images, batch_sampler=parts, num_workers=workers)


def _accelerator() -> Any:
    try:
        accelerate: Any = importlib.import_module("accelerate")
    except ModuleNotFoundError as error:
        raise TuningError(
            f"fine-tuning needs accelerate ({error}): pip install upscale[tune]"
        ) from error
    return accelerate.Accelerator()
