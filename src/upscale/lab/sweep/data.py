"""Data: batches of inputs and labels, from an import path or from arrays in files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from upscale.lab.sources import SourceError, imported
from upscale.lab.zoo import digits_data

BATCH = 250
HELP = (
    "upscale:digits, package.module:callable (which gives batches of inputs and labels), or an "
    ".npz file, or a folder of them, with the arrays `images` and `labels`"
)

Pairs = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Loaded:
    """Batches of a loader, which may be more than memory holds: loaded anew at every turn."""

    source: str
    loader: Iterable[Any]
    images: int | None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return _counted(self.source, self.loader, self.images)


def find_data(source: str, images: int | None = None) -> Pairs:
    """The batches that a source names; of so many images in all, if a number is given.

    Images are taken as they are: a model's normalisation has to be done before.
    """
    path = Path(source)
    if source == "upscale:digits":
        held = digits_data()
        found: Iterable[Any] = _split(held.held_out_images, held.held_out_labels)
    elif path.is_file() or path.is_dir():
        files = [path] if path.is_file() else sorted(path.glob("*.npz"))
        if not files:
            raise SourceError(f"{source} holds no .npz file; data is {HELP}")
        found = (pair for file in files for pair in _split(*_arrays(file)))
    elif ":" in source:
        given = imported(source)
        found = given() if callable(given) else given
        if isinstance(found, DataLoader):
            return Loaded(source, found, images)
    else:
        raise SourceError(f"data is {source!r}, which is not there; give {HELP}")
    return list(_counted(source, found, images))


def _split(pictures: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(pictures.split(BATCH), labels.split(BATCH), strict=True)


def _arrays(path: Path) -> tuple[Tensor, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as held:
            images, labels = held["images"], held["labels"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise SourceError(f"{path} is no .npz with `images` and `labels`: {error}") from error
    if images.ndim < 2 or labels.shape != images.shape[:1]:
        raise SourceError(
            f"{path} has images of shape {images.shape} and labels of shape {labels.shape}; "
            "it must be one label for each image"
        )
    return torch.from_numpy(images).float(), torch.from_numpy(labels.astype(np.int64))


def _counted(source: str, found: Iterable[Any], images: int | None) -> Iterator[Any]:
    left = images
    try:
        for pair in found:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise SourceError(f"{source} gives {type(pair).__name__}; each batch is two things")
            inputs, labels = pair
            if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor):
                raise SourceError(f"{source} gives batches that are no pairs of tensors")
            yield (inputs, labels) if left is None else (inputs[:left], labels[:left])
            left = None if left is None else left - len(labels)
            if left is not None and left <= 0:
                return
    except TypeError as error:
        raise SourceError(f"{source} gives no batches: {error}") from error
