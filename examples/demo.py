"""Prune the shipped digits network by 30% and print what changed; `make demo` runs this.

Every layer drops the input channels it needs least, whatever the other readers of the same
tensor keep; nothing is fine-tuned afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import upscale
from upscale.zoo import digits, digits_data

AMOUNT = 0.3
ROUNDS = 100


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    data = digits_data()
    images, labels = data.held_out_images, data.held_out_labels

    model = digits()
    example = images[:1]
    pruned = upscale.prune(model, example, amount=AMOUNT)
    selection = upscale.select(model, example, amount=AMOUNT)
    in_place = upscale.plan(model, example, selection, order="none")
    ordered = upscale.plan(model, example, selection)

    before_ms, after_ms, ratio = race(lambda: model(images), lambda: pruned(images))
    print(f"digits network, {AMOUNT:.0%} of every layer's input channels dropped")
    print()
    row("", "before", "after", "ratio")
    right_before, right_after = (accuracy(m, images, labels) for m in (model, pruned))
    row(f"accuracy, {len(labels)} held out", f"{right_before:.1%}", f"{right_after:.1%}", "")
    counted("parameters", parameters(model), parameters(pruned))
    counted("MACs per image", macs(model, example), macs(pruned, example))
    latency = f"latency, batch of {len(images)}"
    row(latency, f"{before_ms:.2f} ms", f"{after_ms:.2f} ms", f"{ratio:.2f}")
    row("copies, channels in place", "0", f"{in_place.copies}", "")
    row("copies, channels reordered", "0", f"{ordered.copies}", "")
    print()
    print(f"plan: copies {ordered.copies}, bytes copied per image {ordered.copied_bytes:,}")
    print("The network was trained to be pruned, with settings chosen on these held-out images.")


def row(name: str, before: str, after: str, ratio: str) -> None:
    print(f"{name:<28}{before:>14}{after:>14}{ratio:>8}")


def counted(name: str, before: int, after: int) -> None:
    row(name, f"{before:,}", f"{after:,}", f"{after / before:.2f}")


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images classified correctly."""
    with torch.inference_mode():
        return float((model(images).argmax(1) == labels).float().mean())


def parameters(model: nn.Module) -> int:
    """Return the number of trainable values."""
    return sum(p.numel() for p in model.parameters())


def macs(model: nn.Module, example: Tensor) -> int:
    """Return the multiply-accumulates of one forward pass; torch counts each as two operations."""
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(example)
    return int(counter.get_total_flops()) // 2


def race(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float, float]:
    """Return both median times in milliseconds and the median of second ÷ first.

    The two alternate in one loop, so that whatever else the machine does slows both alike.
    """
    times_ms: list[tuple[float, float]] = []
    with torch.inference_mode():
        for _ in range(ROUNDS):
            times_ms.append((time_ms(first), time_ms(second)))
    warm = times_ms[ROUNDS // 10 :]
    return (
        median(one for one, _ in warm),
        median(other for _, other in warm),
        median(other / one for one, other in warm),
    )


def time_ms(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
