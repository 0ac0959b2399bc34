"""ImageNet and torchvision's models trained on it, as import paths that a grid can name.

`UPSCALE_IMAGENET` names a folder with `val/CLASS/*` and, for fine-tuning and for criteria that look
at images, `train/CLASS/*`. `paper.imagenet:resnet50` is torchvision's model with the first weights
it published, which the paper pruned; torchvision fetches them once.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from upscale.errors import UpscaleError
from upscale.zoo import import_torchvision, torchvision_model

BATCH, SAMPLE, SOME = 100, 500, 500


class NoImages(UpscaleError):
    """There is no folder of ImageNet where one is said to be."""


def __getattr__(name: str) -> Callable[[], nn.Module]:
    if name.startswith("_") or name not in import_torchvision().models.list_models():
        raise AttributeError(f"torchvision has no model {name!r}")
    return partial(torchvision_model, name, weights="IMAGENET1K_V1")


def folder(split: str, *, augment: bool = False) -> Dataset[tuple[Tensor, int]]:
    """The images of a split, as torchvision's models take them."""
    root = Path(os.environ.get("UPSCALE_IMAGENET", "")) / split
    if "UPSCALE_IMAGENET" not in os.environ or not root.is_dir():
        raise NoImages(f"UPSCALE_IMAGENET names no folder with {split}/CLASS/* in it")
    import_torchvision()  # in our way first: it may lack compiled parts
    datasets: Any = importlib.import_module("torchvision.datasets")
    transforms: Any = importlib.import_module("torchvision.transforms")
    cut = [transforms.Resize(256), transforms.CenterCrop(224)]
    if augment:
        cut = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    normal = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    prepare = transforms.Compose([*cut, transforms.ToTensor(), normal])
    found: Dataset[tuple[Tensor, int]] = datasets.ImageFolder(str(root), prepare)
    return found


def validation() -> DataLoader[Any]:
    """All validation images, batch by batch."""
    return DataLoader(folder("val"), batch_size=BATCH)


def some_validation() -> DataLoader[Any]:
    """A few of the validation images, of all classes."""
    return DataLoader(_spread(folder("val"), SOME), batch_size=BATCH)


def sample() -> DataLoader[Any]:
    """Training images for criteria to look at."""
    return DataLoader(_spread(folder("train"), SAMPLE), batch_size=BATCH)


def noise() -> list[tuple[Tensor, Tensor]]:
    """What criteria look at where no image is: enough for a latency, which no accuracy enters."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 3, 224, 224, generator=generator), torch.zeros(8, dtype=torch.long))]


def _spread(images: Dataset[tuple[Tensor, int]], count: int) -> Dataset[tuple[Tensor, int]]:
    """So many images, drawn by a seed: a folder is sorted by class."""
    size = len(images)  # type: ignore[arg-type]  # a folder of images has a length
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    return Subset(images, order[:count].tolist())


def training() -> Dataset[tuple[Tensor, int]]:
    """All training images, cut and mirrored at random whenever one is taken."""
    return folder("train", augment=True)


def some_training() -> Dataset[tuple[Tensor, int]]:
    """A thousand of them."""
    return _spread(training(), 2 * SAMPLE)
