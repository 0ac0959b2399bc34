"""Images and trained networks of the directory that `UPSCALE_DATA` names.

`../shared/data` if it names none. What belongs there, and how to make it from the original
CIFAR-10, is in `docs/data.md`. Pictures come as the networks take them: RGB in 0..1, normalised.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import zipfile
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

Pixels = npt.NDArray[np.uint8]
Classes = npt.NDArray[np.int64]

DATA = Path(os.environ.get("UPSCALE_DATA") or Path(__file__).resolve().parents[2] / "shared/data")
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE, IMAGENET_SIDE = 32, 224


def images(data: Path, split: str, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """So many CIFAR-10 images of a split drawn by a seed, normalised, and their classes."""
    pixels, classes = drawn(data, split, count, seed)
    return normalised(pixels), torch.from_numpy(classes)


def drawn(data: Path, split: str, count: int, seed: int = 0) -> tuple[Pixels, Classes]:
    """So many CIFAR-10 images of a split drawn by a seed, as bytes, and their classes."""
    pixels, classes = mosaics(data, split)
    order = np.random.default_rng(seed).permutation(len(classes))[:count]
    return pixels[order], classes[order]


@cache
def mosaics(data: Path, split: str) -> tuple[Pixels, Classes]:
    """All CIFAR-10 pictures of a split, (N, 32, 32, RGB) of bytes, and their classes, in order.

    `cifar10/SPLIT.webp` or `SPLIT-1.webp`, `SPLIT-2.webp` ... hold them side by side, row by row;
    what follows the last picture is blank. `cifar10/labels.json` has the classes in that order.
    """
    folder = data / "cifar10"
    if not (folder / "labels.json").is_file():
        raise SystemExit(f"{folder} holds no CIFAR-10: docs/data.md says how to make it")
    classes = np.asarray(json.loads((folder / "labels.json").read_text())[split], dtype=np.int64)
    parts = [apart(np.asarray(Image.open(own).convert("RGB"))) for own in files_of(folder, split)]
    pixels = np.concatenate(parts) if parts else np.empty((0, SIDE, SIDE, 3), np.uint8)
    if len(pixels) < len(classes):
        raise SystemExit(
            f"{folder} has {len(classes)} classes of {split} images, but {len(pixels)} images"
        )
    return pixels[: len(classes)], classes


def files_of(folder: Path, split: str) -> list[Path]:
    """The mosaics of a split, by their number."""
    found = {
        int(match[1] or 0): path
        for path in folder.iterdir()
        if (match := re.fullmatch(rf"{split}(?:-(\d+))?\.webp", path.name))
    }
    return [found[number] for number in sorted(found)]


def apart(mosaic: Pixels) -> Pixels:
    """The pictures of a mosaic, row by row."""
    down, right = (side // SIDE for side in mosaic.shape[:2])
    tiles = mosaic.reshape(down, SIDE, right, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(down * right, SIDE, SIDE, 3)


def normalised(pixels: Pixels) -> Tensor:
    """Pictures (N, height, width, RGB) of bytes as the networks take them."""
    mean, deviation = (torch.tensor(v)[:, None, None] for v in (MEAN, DEVIATION))
    shares = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    return ((shares - mean) / deviation).contiguous()


def imagenet(data: Path, wanted: Collection[int]) -> tuple[Tensor, Tensor]:
    """The ImageNet images of some classes, one each: the middle, normalised, and the classes.

    They are for comparing models, not for absolute accuracy: fit on some classes, test on others.
    """
    pictures, classes = [], []
    with zipfile.ZipFile(data / "imagenet-1000.zip") as archive:
        for name in sorted(archive.namelist()):
            match = re.fullmatch(r"(?:.*/)?(\d{3})-n\d+\.jpg", name)
            if match is None or int(match[1]) not in wanted:
                continue
            picture = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            left, top = ((side - IMAGENET_SIDE) // 2 for side in picture.size)
            middle = (left, top, left + IMAGENET_SIDE, top + IMAGENET_SIDE)
            pictures.append(np.asarray(picture.crop(middle)))
            classes.append(int(match[1]))
    return normalised(np.stack(pictures)), torch.tensor(classes)


def trained_mobilenet_v2(data: Path) -> nn.Module:
    """torchvision's MobileNetV2 with its ImageNet weights, in evaluation mode."""
    models: Any = importlib.import_module("torchvision.models")  # it carries no annotations
    model: nn.Module = models.mobilenet_v2().eval()
    model.load_state_dict(load_file(data / "mobilenet_v2-imagenet.safetensors"))
    return model
