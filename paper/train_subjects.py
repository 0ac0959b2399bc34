"""Train the small CIFAR-10 networks: `python -m paper.train_subjects [NAME ...] [--quick]`.

On the 50,000 training images, by SGD with a rate that rises for a fifth of the steps and then falls
to nothing. The first half of the epochs sees the middle three quarters of a side, which costs half
as much. Beside the labels a network is taught what the trained ResNet-56 answers for each picture
and its mirror image, worked out once. These answers and the state after each epoch are kept in the
user's cache (`--state`), so that a run that was stopped goes on, from a fresh checkout too, and
ends the same. When a network is done its weights, in half precision, are written to
`paper/weights/`, and beside them how they came about: epochs, minutes over all runs, bytes, and
top-1 of these very weights on the 10,000 test images. `--table` prints what is there; it measures
top-1 again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.cifar import trained
from benchmarks.data import DATA, Classes, Pixels, mosaics, normalised
from paper import lossless, subjects
from paper.lossless import PADDING, padded

RATE, MOMENTUM, DECAY, BATCH, RISE = 0.2, 0.9, 5e-4, 128, 0.2
TEACHER, TAUGHT, TEMPERATURE = 56, 0.9, 4.0  # the ResNet, its share of the loss, how soft it is
EPOCHS = {
    "densenet": 20,
    "squeezenet": 24,
    "mobilenet_v2": 20,
    "mobilenet_v3": 20,
    "efficientnet": 18,
    "inception": 24,
}


@dataclass(frozen=True, slots=True)
class Spent:
    """One epoch: its number, its mean loss, and the seconds spent on all epochs so far."""

    epoch: int
    loss: float
    seconds: float


def rate_at(done: float) -> float:
    """The rate when this share of all steps is done."""
    return RATE * min(0.1 + 0.9 * done / RISE, (1 - done) / (1 - RISE))


def side_at(done: float, whole: int) -> int:
    """How many pixels of a side are looked at when this share of all epochs is done."""
    return 3 * whole // 4 if done < 0.5 else whole


def answers(teacher: nn.Module, pixels: Pixels) -> Tensor:
    """What a network answers for every picture, and for every mirror image: (2, N, classes)."""

    def shown(mirrored: bool, start: int) -> Tensor:
        pictures = normalised(pixels[start : start + BATCH])
        pictures = pictures.flip(-1) if mirrored else pictures
        answer: Tensor = teacher(pictures.contiguous(memory_format=torch.channels_last))
        return answer

    with torch.inference_mode():
        both = [
            torch.cat([shown(mirrored, start) for start in range(0, len(pixels), BATCH)])
            for mirrored in (False, True)
        ]
        return torch.stack(both)


def kept_answers(path: Path, pixels: Pixels) -> Tensor:
    """The teacher's answers, from the file where they are once they were worked out."""
    if not path.is_file():
        teacher: Any = trained(TEACHER, DATA)
        worked_out = answers(teacher.to(memory_format=torch.channels_last), pixels)
        replaced(path, partial(save_file, {"answers": worked_out}))
    return load_file(path)["answers"]


def taught_loss(given: Tensor, labels: Tensor, answer: Tensor) -> Tensor:
    """How far logits are from the labels and, softened, from the teacher's."""
    soft = F.log_softmax(given / TEMPERATURE, dim=1)
    goal = F.softmax(answer / TEMPERATURE, dim=1)
    apart = F.kl_div(soft, goal, reduction="batchmean") * TEMPERATURE**2
    return TAUGHT * apart + (1 - TAUGHT) * F.cross_entropy(given, labels)


class Shuffled:
    """Pictures as bytes, taken in batches: moved by up to four pixels, mirrored every other epoch.

    Which epoch mirrors a picture is drawn once: two epochs in a row show it both ways.
    """

    def __init__(self, pixels: Pixels, labels: Classes, answers: Tensor, seed: int) -> None:
        self.pixels, self.labels, self.answers = padded(pixels), labels, answers
        self.coins = np.random.default_rng(seed).integers(0, 2, len(labels))
        self.side, self.seed = pixels.shape[1], seed

    def batches(self, epoch: int, side: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Pictures, classes and the teacher's answers of an epoch, in whole batches.

        What is drawn depends on the epoch's number alone.
        """
        drawn = np.random.default_rng((self.seed, epoch))
        order = drawn.permutation(len(self.labels))
        least = (self.side - side) // 2  # the middle is where a smaller picture is taken
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            down, right = least + drawn.integers(0, 2 * PADDING + 1, (2, BATCH, 1))
            rows, columns = down + np.arange(side), right + np.arange(side)
            mirrored = (self.coins[chosen] + epoch) % 2 == 1
            columns[mirrored] = columns[mirrored, ::-1]
            taken = self.pixels[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
            labels = torch.from_numpy(self.labels[chosen])
            yield normalised(taken), labels, self.answers[mirrored.astype(np.int64), chosen]


def train(
    model: nn.Module, images: Shuffled, epochs: int, state: Path, *, most_batches: int | None = None
) -> Iterator[Spent]:
    """Train in place; after each epoch what it came to, when the state is written."""
    laid_out: Any = model  # annotations of `to` know nothing of memory formats
    laid_out.to(memory_format=torch.channels_last)
    flat = [own for own in model.parameters() if own.dim() == 1]
    weights = [own for own in model.parameters() if own.dim() > 1]
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": flat, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, RATE, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True)
    shapes = {name: list(own.shape) for name, own in model.state_dict().items()}
    begun, seconds = 0, 0.0
    if state.is_file():
        held = torch.load(state, weights_only=True)
        if (held["epochs"], held["shapes"]) != (epochs, shapes):
            raise SystemExit(f"{state} is of another network or count of epochs: remove it")
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        begun, seconds = held["done"], held["seconds"]
        yield Spent(begun, held["loss"], seconds)
    count = len(images.labels) // BATCH
    count = count if most_batches is None else min(most_batches, count)
    for epoch in range(begun, epochs):
        start = time.perf_counter()
        model.train()
        total = 0.0
        batches = images.batches(epoch, side_at(epoch / epochs, images.side))
        for turn, (pictures, labels, answer) in zip(range(count), batches, strict=False):
            for group in optimizer.param_groups:
                group["lr"] = rate_at((epoch + turn / count) / epochs)
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            loss = taught_loss(model(pictures), labels, answer)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        if not math.isfinite(total):
            raise SystemExit(f"the loss of epoch {epoch + 1} is not a number")
        seconds += time.perf_counter() - start
        told = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "shapes": shapes,
            "epochs": epochs,
            "done": epoch + 1,
            "loss": total / count,
            "seconds": seconds,
        }
        replaced(state, partial(torch.save, told))
        yield Spent(epoch + 1, total / count, seconds)


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(path.name + ".partial")
    write(whole)
    whole.replace(path)


def write_text(text: str, path: Path) -> None:
    """Text as a file."""
    path.write_text(text, encoding="utf-8")


def halved(model: nn.Module) -> dict[str, Tensor]:
    """The weights in half precision; counters as they are."""
    return {
        name: (own.half() if own.is_floating_point() else own).contiguous()
        for name, own in model.state_dict().items()
    }


def top1(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Right answers, in percent."""
    with torch.inference_mode():
        right = sum(int((model(x).argmax(dim=1) == labels).sum()) for x, labels in batches)
    return 100 * right / sum(len(labels) for _, labels in batches)


def table() -> str:
    """A line for each trained network: top-1, measured now, minutes of training, and size."""
    test = lossless.test()
    lines = ["| network | top-1 of 10,000 | minutes | epochs | MB |", "|---|---|---|---|---|"]
    for name in subjects.trained_names():
        how = subjects.training_of(name)
        measured = top1(subjects.trained(name), test)
        size = subjects.weights_of(name).stat().st_size / 1e6
        lines.append(f"| {name} | {measured:.2f} | {how.minutes:.0f} | {how.epochs} | {size:.2f} |")
    return "\n".join(lines)


def main() -> int:
    """Train what is asked for, one network after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(subjects.BUILDERS))
    parser.add_argument("--epochs", type=int, help="if not those of each network")
    parser.add_argument("--threads", type=int, default=1)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parser.add_argument("--state", type=Path, default=cache / "upscale" / "subjects")
    parser.add_argument("--weights", type=Path, default=subjects.WEIGHTS)
    parser.add_argument("--quick", action="store_true", help="two batches; no weights are written")
    parser.add_argument("--table", action="store_true", help="what is trained, and no training")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in subjects.BUILDERS:
            parser.error(f"there is no {name!r}; there are {', '.join(subjects.BUILDERS)}")
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    if arguments.table:
        print(table())
        return 0
    quick = arguments.quick
    pixels, labels = mosaics(DATA, "train")
    if quick:
        pixels, labels = pixels[: 2 * BATCH], labels[: 2 * BATCH]
    kept = arguments.state / f"answers{'-quick' if quick else ''}.safetensors"
    images = Shuffled(pixels, labels, kept_answers(kept, pixels), seed=0)
    test = lossless.some_test() if quick else lossless.test()
    for name in arguments.names or subjects.BUILDERS:
        epochs, most = (1, 2) if quick else (arguments.epochs or EPOCHS[name], None)
        torch.manual_seed(0)
        model = subjects.BUILDERS[name]()
        state = arguments.state / f"{name}{'-quick' if quick else ''}.pt"
        seconds = 0.0
        for spent in train(model, images, epochs, state, most_batches=most):
            seconds = spent.seconds
            line = f"{name}: epoch {spent.epoch}, loss {spent.loss:.4f}, {seconds / 60:.1f} minutes"
            print(line, flush=True)
        stored = halved(model)
        model.load_state_dict(subjects.widened(stored))
        reached = top1(model.eval(), test)
        size = sum(own.numel() * own.element_size() for own in stored.values())
        said = f"top-1 {reached:.2f}%, {size / 1e6:.2f} MB, {seconds / 60:.0f} minutes in all"
        print(f"{name}: {said}", flush=True)
        if quick:
            state.unlink()
            continue
        weights = arguments.weights / subjects.weights_of(name).name
        replaced(weights, partial(save_file, stored))
        how = subjects.Training(epochs, round(seconds / 60, 1), reached, weights.stat().st_size)
        text = json.dumps(asdict(how), indent=2) + "\n"
        replaced(weights.with_suffix(".json"), partial(write_text, text))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
