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
from upscale.lab.tuning.identity import looked_at, size_of
from upscale.lab.tuning.items import parted
from upscale.lab.tuning.recipes import Epoch, Recipe, TuningError
from upscale.lab.tuning.teaching import Teacher, answers_of, compared


def tune(
    model: nn.Module,
    train: Dataset[Any],
    test: Dataset[Any],
    recipe: Recipe,
    *,
    teacher: nn.Module | Teacher | None = None,
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
    teacher
        A network to learn from in the place of labels, such as the unpruned one; it is not changed.
        `Teacher(network, ...)` says how, and which share labels have. Without a share for them,
        datasets may be of inputs alone.
    checkpoints
        A folder for the state after each epoch. If it holds one of the same model, masks, recipe,
        teacher and data, training goes on from there and ends as if it had never stopped; one of
        anything else is refused.
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
    taught = _prepared(Teacher.of(teacher), model, test, accelerator.device)
    kept = None
    if checkpoints is not None:
        kept = Checkpoints.of(Path(checkpoints), model, train, test, recipe, taught)
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
        loss = _train(accelerator, wrapped, prepared, train, recipe, number, workers, taught)
        _agree(accelerator, model)
        # Not the wrapped one: processes may have more or fewer batches to look at than others.
        top1, apart = _tested(accelerator, model, test, share, workers, taught)
        epochs.append(Epoch(number, loss, top1, time.perf_counter() - start, apart))
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
    teacher: Teacher | None,
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
    for turn, batch in enumerate(_loader(train, own, workers)):
        done = (number - 1 + turn / len(every)) / recipe.epochs
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate_at(done)
        inputs, labels = _on(accelerator.device, batch)
        if teacher is not None:
            with accelerator.autocast():
                answer = teacher.answer(inputs.clone())  # a network may write into what it is given
            loss = teacher.loss_of(model(inputs), answer, labels)
        elif labels is not None:
            loss = F.cross_entropy(model(inputs), labels)
        else:
            raise TuningError("the training data has no labels; give a teacher to learn from")
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


def _tested(
    accelerator: Any,
    model: nn.Module,
    test: Dataset[Any],
    batch: int,
    workers: int,
    teacher: Teacher | None,
) -> tuple[float | None, float | None]:
    """Right answers in percent, and how far outputs are from the teacher's.

    Each process counts its own part. Without labels the teacher's answers are the right ones.
    """
    model.eval()
    own = range(accelerator.process_index, size_of(test), accelerator.num_processes)
    parts = [list(own[first : first + batch]) for first in range(0, len(own), batch)]
    # Samples that have an answer, right answers, squares of differences, squares of the teacher's.
    sums = torch.zeros(4, dtype=torch.float64)
    with torch.no_grad():
        for found in _loader(test, parts, workers):
            inputs, labels = _on(accelerator.device, found)
            answer = None if teacher is None else teacher.answer(inputs.clone())
            outputs = model(inputs)
            right = labels if answer is None or labels is not None else answers_of(answer)
            taken = answers_of(outputs)
            if right is not None and taken is not None:
                sums[:2] += torch.tensor([len(taken), int((taken == right).sum())])
            for one, other in () if answer is None else compared(outputs, answer):
                apart, whole = (one - other).double().square().sum(), other.double().square().sum()
                sums[2:] += torch.tensor([float(apart), float(whole)])
    total = accelerator.reduce(sums.float().to(accelerator.device), "sum").tolist()
    top1 = 100 * total[1] / total[0] if total[0] else None
    return top1, None if teacher is None else total[2] / (total[3] or 1)


def _prepared(
    teacher: Teacher | None, model: nn.Module, test: Dataset[Any], device: torch.device
) -> Teacher | None:
    """The teacher as it teaches; what it gives for some test data says what it can be asked for."""
    if teacher is None:
        return None
    if teacher.model is model:
        raise TuningError("the teacher is the model itself; give the unpruned one")
    if not size_of(test):
        raise TuningError("there is no test data; a teacher is looked at on some")
    return teacher.prepared(looked_at(teacher.model, test), device)


def _on(device: torch.device, batch: Any) -> tuple[Tensor, Tensor | None]:
    """The inputs and labels of a batch, on a device."""
    inputs, labels = parted(batch)
    return inputs.to(device), None if labels is None else labels.to(device)


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
