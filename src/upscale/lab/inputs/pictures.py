"""Pictures: image files of any size, decoded when they are asked for, as a model takes them."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upscale.lab.inputs.album import Album, ImageError, folders
from upscale.lab.inputs.classes import classes_of
from upscale.tools.optional_packages import import_pillow

# Decoders that need no other program, and as many pixels as a large camera makes.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 1 << 26
# The usual normalisation, and the share of an image's sides that its middle is.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MIDDLE = 0.875
MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True, slots=True)
class Preparation:
    """How a picture becomes an input: the middle of it, scaled, less the mean, by the deviation.

    A picture of the very size is taken whole: it was cut already.
    """

    height: int
    width: int
    mean: tuple[float, ...] = MEAN
    deviation: tuple[float, ...] = DEVIATION

    def prepared(self, image: Any) -> Tensor:
        """The input that an image of Pillow's becomes."""
        if image.size != (self.width, self.height):
            # Scaled from a part of the picture: a very long one has no large version in between.
            image = image.resize((self.width, self.height), BILINEAR, box=self._box(*image.size))
        pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
        pixels = pixels.reshape(self.height, self.width, -1).permute(2, 0, 1)
        mean, deviation = (
            torch.tensor(own).reshape(-1, 1, 1) for own in (self.mean, self.deviation)
        )
        return (pixels.float() / 255 - mean) / deviation

    def _box(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of a picture that is taken: left, upper, right, lower.

        A picture of 500 × 375 is scaled to 341 × 256, and 224 × 224 of that is cut out from 58, 16.
        In the picture's own measure that begins at 58 · 500 / 341, 16 · 375 / 256.
        """
        wide, high = round(self.width / MIDDLE), round(self.height / MIDDLE)
        if wide * height > high * width:
            high = int(wide * height / width)
        else:
            wide = int(high * width / height)
        left, upper = round((wide - self.width) / 2), round((high - self.height) / 2)
        across, down = width / wide, height / high
        right, lower = (left + self.width) * across, (upper + self.height) * down
        return left * across, upper * down, right, lower


BILINEAR = 2  # Pillow's number for it


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of an album as inputs. What cannot be read is left out, and told why."""

    album: Album
    preparation: Preparation
    dtype: torch.dtype = torch.float32
    unreadable: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.album.paths)

    def take(self, numbers: Sequence[int]) -> tuple[Tensor, list[int]]:
        """A batch of some pictures, and the numbers of those that could be read."""
        found: dict[int, Tensor] = {}
        for number in numbers:
            path = self.album.paths[number]
            try:
                found[number] = decode(self.album.read(path), self.preparation)
            except ImageError as error:
                self.unreadable[str(path)] = str(error)
        if not found:
            return torch.empty(0), []
        return torch.stack(list(found.values())).to(self.dtype), list(found)

    def classes(self, outputs: int) -> Sequence[int] | None:
        """The class of each picture, by the folder it lies in."""
        names = folders(self.album.paths)
        return None if names is None else classes_of(names, outputs)


def decode(data: bytes, preparation: Preparation) -> Tensor:
    """The input that an image file becomes; raises `ImageError` if it is none, or too large."""
    image_module = import_pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd metadata; pixels are counted below
            with image_module.open(io.BytesIO(data), formats=FORMATS) as image:
                _check(image)
                whole = image.convert(MODES[len(preparation.mean)])
                return preparation.prepared(whole)
    except ImageError:
        raise
    except Exception as error:  # decoders raise what they like on damaged files
        raise ImageError(str(error) or type(error).__name__) from error


def _check(image: Any) -> None:
    """Raise unless an image, of which the header alone was read, can be decoded within bounds."""
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise ImageError(f"it has {width} × {height} pixels, more than {MOST_PIXELS:,}")
    if image.mode.startswith(("I", "F")):
        raise ImageError(f"its pixels are of mode {image.mode}; convert it to eight bits")
