"""What renewed statistics bring back: `python benchmarks/recalibration.py [--data DIR]`.

Top-1 of a trained CIFAR-10 ResNet after pruning without training, before and after its BatchNorm
statistics are renewed on training images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from accuracy import EXAMPLE, top1
from cifar import trained
from data import DATA, images

import upscale

SHARES = (0.05, 0.10, 0.20, 0.30, 0.40)


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--images", type=int, default=2000, help="test images")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = trained(arguments.depth, arguments.data)
    test = images(arguments.data, "test", arguments.images)
    train, _ = images(arguments.data, "train", 1000)
    print(f"| parameters pruned (L1, ResNet-{arguments.depth}) | top-1 | recalibrated |")
    print("| --- | --- | --- |")
    for share in SHARES:
        selection = upscale.select(
            model, EXAMPLE, amount=upscale.Parameters(share), importance="l1"
        )
        before = top1(upscale.mask(model, selection), *test)
        renewed = upscale.recalibrate(upscale.mask(model, selection), train.split(250))
        print(f"| {share:.0%} | {before:.1f} | {top1(renewed, *test):.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
