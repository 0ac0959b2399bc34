"""Train the small CIFAR-10 networks: `python -m paper.train_subjects [NAME ...] [--quick]`.

On the 20,000 training images, by SGD with a rate that rises for a sixth of the steps and then falls
along half a cosine. The state after each epoch is kept (`--state`), so that a run that was stopped
goes on and ends the same. When a network is done its weights, in half precision, are written to
`paper/weights/`, and its top-1 with these very weights is printed.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from paper import cifar, subjects
from paper.common import ROOT

RATE, MOMENTUM, DECAY, BATCH, RISE = 0.1, 0.9, 5e-4, 128, 1 / 6


def rate_at(done: float) -> float:
    """The rate when this share of all steps is done."""
    if done < RISE:
        return RATE * (0.1 + 0.9 * done / RISE)
    return RATE * (1 + math.cos(math.pi * (done - RISE) / (1 - RISE))) / 2


def train(
    model: nn.Module,
    images: Dataset[Any],
    epochs: int,
    state: Path,
    *,
    most_batches: int | None = None,
    seed: int = 0,
) -> Iterator[tuple[int, float]]:
    """Train in place; after each epoch its number and its mean loss, when the state is written."""
    laid_out: Any = model  # annotations of `to` know nothing of memory formats
    laid_out.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), RATE, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True
    )
    begun = 0
    if state.is_file():
        held = torch.load(state, weights_only=True)
        if held["epochs"] != epochs:
            raise SystemExit(f"{state.name} is of {held['epochs']} epochs, not {epochs}: remove it")
        model.load_state_dict(held["model"])
        optimizer.load_state_dict(held["optimizer"])
        begun = held["done"]
    for epoch in range(begun, epochs):
        # What an epoch draws depends on its number alone, so a resumed run draws the same.
        torch.manual_seed(1_000_003 * seed + epoch)
        loader = DataLoader(images, BATCH, shuffle=True, drop_last=True)
        count = len(loader) if most_batches is None else min(most_batches, len(loader))
        model.train()
        total = 0.0
        for turn, (pictures, labels) in enumerate(islice(loader, count)):
            for group in optimizer.param_groups:
                group["lr"] = rate_at((epoch + turn / count) / epochs)
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach())
        told = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        whole = state.with_suffix(".partial")
        state.parent.mkdir(parents=True, exist_ok=True)
        torch.save({**told, "done": epoch + 1, "epochs": epochs}, whole)
        whole.replace(state)
        yield epoch + 1, total / count
    model.eval()


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


def main() -> int:
    """Train what is asked for, one network after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(subjects.BUILDERS))
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "subjects")
    parser.add_argument("--weights", type=Path, default=subjects.WEIGHTS)
    parser.add_argument("--quick", action="store_true", help="two batches; no weights are written")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in subjects.BUILDERS:
            parser.error(f"there is no {name!r}; there are {', '.join(subjects.BUILDERS)}")
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)
    quick = arguments.quick
    images = cifar.some_training() if quick else cifar.training()
    test = cifar.some_test() if quick else cifar.test()
    for name in arguments.names or subjects.BUILDERS:
        torch.manual_seed(0)
        model = subjects.BUILDERS[name]()
        state = arguments.state / f"{name}{'-quick' if quick else ''}.pt"
        epochs, most = (1, 2) if quick else (arguments.epochs, None)
        start = time.perf_counter()
        for epoch, loss in train(model, images, epochs, state, most_batches=most):
            taken = time.perf_counter() - start
            print(f"{name}: epoch {epoch}, loss {loss:.4f}, {taken:.0f} s", flush=True)
        stored = halved(model)
        model.load_state_dict(subjects.widened(stored))
        model.eval()
        size = sum(own.numel() * own.element_size() for own in stored.values())
        print(f"{name}: top-1 {top1(model, test):.2f}%, {size / 1e6:.2f} MB", flush=True)
        if quick:
            state.unlink()
            continue
        arguments.weights.mkdir(parents=True, exist_ok=True)
        save_file(stored, arguments.weights / subjects.weights_of(name).name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
