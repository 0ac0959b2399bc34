"""Finding the inputs that a source names: a folder, a zip, an array, or what sweeps take too."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from upscale.lab.inputs.album import Album, Folder, Zip
from upscale.lab.inputs.arrays import Arrays
from upscale.lab.inputs.pictures import Pictures, Preparation
from upscale.lab.sources import SourceError, find_data

INPUTS_HELP = (
    "a folder of images, a zip of them, a .npy, .npz or .safetensors of inputs; or "
    "upscale:digits, package.module:callable or an .npz of images and labels, as sweeps take them"
)
ARRAYS = (".npy", ".safetensors")


def find_samples(
    source: str, prepare: Callable[[], Preparation], dtype: torch.dtype, most: int
) -> Pictures | Arrays:
    """The inputs that a source names; `prepare` is asked how, if they are images.

    Of batches that a callable gives, so many samples are taken at most.
    """
    path = Path(source)
    if path.is_dir():
        return _pictures(Folder(path), source, prepare, dtype)
    if path.suffix in ARRAYS and path.is_file():
        return Arrays.read(path, dtype)
    if path.suffix == ".npz" and path.is_file() and not _is_labelled(path):
        return Arrays.read(path, dtype)
    if path.suffix == ".npz" or (":" in source and not path.exists()):
        pairs = list(find_data(source, most))
        if not pairs:
            raise SourceError(f"{source} gives no batches")
        inputs, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return Arrays.held(inputs, labels, dtype)
    if path.is_file():
        if not zipfile.is_zipfile(path):
            raise SourceError(f"{source} is no zip; data is {INPUTS_HELP}")
        return _pictures(Zip(path), source, prepare, dtype)
    raise SourceError(f"data is {source!r}, which is not there; give {INPUTS_HELP}")


def _is_labelled(path: Path) -> bool:
    """Whether an `.npz` is what sweeps take: `images` and `labels`; a damaged one may be."""
    try:
        with np.load(path, allow_pickle=False) as held:
            return "images" in held.files
    except (OSError, ValueError, zipfile.BadZipFile):
        return True


def _pictures(
    album: Album, source: str, prepare: Callable[[], Preparation], dtype: torch.dtype
) -> Pictures:
    try:
        found = album.paths
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise SourceError(f"{source} cannot be read: {error}") from error
    if not found:
        raise SourceError(f"{source} holds no image; data is {INPUTS_HELP}")
    return Pictures(album, prepare(), dtype)
