"""CIFAR-10's images, whole and lossless, as import paths that a grid can name.

The name of this module is part of the key of every record measured on them. Records of the JPEG
copy that was here before name `paper.cifar`, so that the two are never taken for each other.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.data import DATA, Classes, Pixels, drawn, images, normalised

TEST, TRAIN, PART, SAMPLE, BATCH = 10_000, 50_000, 1_000, 500, 100
PADDING = 4
# Where test images are found, by how many.
TESTS = {
    TEST: "paper.lossless:test",
    PART: "paper.lossless:part_of_test",
    SAMPLE: "paper.lossless:some_test",
}


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


def training() -> Dataset[tuple[Tensor, Tensor]]:
    """All training images, shifted and mirrored at random whenever one is taken."""
    return Shaken(*drawn(DATA, "train", TRAIN))


def part_of_training() -> Dataset[tuple[Tensor, Tensor]]:
    """The first 5,000 of them."""
    return Shaken(*drawn(DATA, "train", 5 * PART))


def some_training() -> Dataset[tuple[Tensor, Tensor]]:
    """The first 1,000 of them."""
    return Shaken(*drawn(DATA, "train", 2 * SAMPLE))


class Shaken(Dataset[tuple[Tensor, Tensor]]):
    """Images and classes; an image is moved by up to four pixels and mirrored every other time."""

    def __init__(self, pixels: Pixels, classes: Classes) -> None:
        self.pixels, self.labels = padded(pixels), torch.from_numpy(classes)
        self.size = pixels.shape[1]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        down, right = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
        taken = self.pixels[index, None, down : down + self.size, right : right + self.size]
        picture = normalised(taken)[0]
        return picture.flip(-1) if torch.rand(()) < 0.5 else picture, self.labels[index]


def padded(pixels: Pixels) -> Pixels:
    """Pictures with their own mirror image around them, as far as one is moved."""
    around = ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0))
    return np.pad(pixels, around, mode="reflect")
