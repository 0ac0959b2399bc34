"""The trained CIFAR-10 ResNets and their images, as import paths that a grid can name.

They are read from the directory that `UPSCALE_DATA` names, `../shared/data` if it names none.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from benchmarks.cifar import CifarResNet, Classes, Pixels, images, mosaics, trained

DATA = Path(os.environ.get("UPSCALE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
TEST, TRAIN, PART, SAMPLE, BATCH = 10_000, 50_000, 1_000, 500, 100
# Where test images are found, by how many.
TESTS = {
    TEST: "paper.cifar:test",
    PART: "paper.cifar:part_of_test",
    SAMPLE: "paper.cifar:some_test",
}

resnet20 = partial(trained, 20, DATA)
resnet56 = partial(trained, 56, DATA)
build_resnet20 = partial(CifarResNet, 20)
build_resnet56 = partial(CifarResNet, 56)


def resnets() -> list[str]:
    """Those whose weights are there."""
    names = {20: "resnet20", 56: "resnet56"}
    return [n for d, n in names.items() if (DATA / f"resnet{d}-cifar10.safetensors").is_file()]


def test() -> list[tuple[Tensor, Tensor]]:
    """All test images, in the order of a seed."""
    return _batches("test", TEST)


def part_of_test() -> list[tuple[Tensor, Tensor]]:
    """The first 1,000 of the test images."""
    return _batches("test", PART)


def some_test() -> list[tuple[Tensor, Tensor]]:
    """The first 500 of the test images."""
    return _batches("test", SAMPLE)


def sample() -> list[tuple[Tensor, Tensor]]:
    """Training images for criteria to look at."""
    return _batches("train", SAMPLE)


def _batches(split: str, count: int) -> list[tuple[Tensor, Tensor]]:
    pictures, labels = images(DATA, split, count)
    # In this layout, and in batches that caches hold, networks take half the time.
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    return list(zip(pictures.split(BATCH), labels.split(BATCH), strict=True))


def training_pixels() -> tuple[Pixels, Classes]:
    """All training images as bytes, and their classes."""
    return mosaics(DATA, "train")


def training() -> Dataset[tuple[Tensor, Tensor]]:
    """All training images, shifted and mirrored at random whenever one is taken."""
    return Shaken(*images(DATA, "train", TRAIN))


def part_of_training() -> Dataset[tuple[Tensor, Tensor]]:
    """The first 5,000 of them."""
    return Shaken(*images(DATA, "train", 5 * PART))


def some_training() -> Dataset[tuple[Tensor, Tensor]]:
    """The first 1,000 of them."""
    return Shaken(*images(DATA, "train", 2 * SAMPLE))


class Shaken(Dataset[tuple[Tensor, Tensor]]):
    """Images and classes; an image is moved by up to four pixels and mirrored every other time."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        self.pictures, self.labels = F.pad(pictures, (4, 4, 4, 4)), labels
        self.size = pictures.shape[-1]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        down, right, mirrored = torch.randint(0, 9, (3,)).tolist()
        picture = self.pictures[index, :, down : down + self.size, right : right + self.size]
        return picture.flip(-1) if mirrored % 2 else picture, self.labels[index]
