"""Pictures become inputs as torchvision's usual preparation makes them, within bounds."""

from __future__ import annotations

import importlib
import io
import struct
import zlib
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from upscale.lab.inputs import Pictures, Preparation
from upscale.lab.inputs.album import ImageError
from upscale.lab.inputs.pictures import decode
from upscale.tools.optional_packages import MissingPackageError, import_torchvision

PLAIN = Preparation(16, 16, (0.0,) * 3, (1.0,) * 3)


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    across, down = np.meshgrid(np.linspace(0, 6, width), np.linspace(0, 4, height))
    waves = [np.sin(across + n) * np.cos(down * n) for n in range(1, 4)]
    return Image.fromarray((np.stack(waves, 2) * 127 + 128).astype(np.uint8)).convert(mode)


def saved(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def usual(image: Image.Image, size: int) -> Tensor:
    """What torchvision's own transforms make of an image."""
    import_torchvision()
    transforms: Any = importlib.import_module("torchvision.transforms")
    steps = [transforms.Resize(round(size / 0.875)), transforms.CenterCrop(size)]
    steps += [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float32)]
    steps += [transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    return transforms.Compose(steps)(image)


def test_the_middle_is_taken_as_is_usual() -> None:
    for size in ((64, 64), (200, 130), (91, 300), (40, 50)):
        image = picture(*size)
        found, expected = decode(saved(image), Preparation(56, 56)), usual(image, 56)
        one_level = 1 / 255 / 0.22
        torch.testing.assert_close(found, expected, rtol=0, atol=one_level)
        assert float((found - expected).abs().mean()) < 0.01 * one_level


def test_a_picture_of_the_very_size_is_taken_whole() -> None:
    image = picture(16, 16)
    expected = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    torch.testing.assert_close(decode(saved(image), PLAIN), expected)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
def test_colours_of_any_kind_become_those_of_the_model(mode: str) -> None:
    kind = "TIFF" if mode == "CMYK" else "PNG"
    data = saved(picture(20, 20, mode), kind)
    assert decode(data, PLAIN).shape == (3, 16, 16)
    assert decode(data, Preparation(16, 16, (0.5,), (0.5,))).shape == (1, 16, 16)


def test_a_very_long_picture_takes_no_more_memory_than_it_has() -> None:
    assert decode(saved(picture(200_000, 2)), PLAIN).shape == (3, 16, 16)


def bomb(width: int, height: int) -> bytes:
    """A small PNG whose header promises very many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    packed = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed)


@pytest.mark.parametrize("side", [9_000, 60_000])
def test_more_pixels_than_a_camera_makes_are_refused_before_they_are_decoded(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(ImageError, match="pixels"):
        decode(bomb(side, side), PLAIN)


DAMAGED = {
    "empty": b"",
    "text": b"no image at all",
    "cut": saved(picture(60, 60))[:400],
    "deep": saved(Image.fromarray(np.zeros((20, 20), dtype=np.uint16))),
    "cut JPEG": saved(picture(60, 60), "JPEG")[:300],
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_that_is_no_image_is_an_error_of_ours(case: str) -> None:
    with pytest.raises(ImageError):
        decode(DAMAGED[case], PLAIN)


class Shelf:
    """An album in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = {PurePosixPath(name): data for name, data in files.items()}
        self.paths = tuple(sorted(self.files))
        self.reads: list[str] = []

    def read(self, path: PurePosixPath) -> bytes:
        self.reads.append(str(path))
        return self.files[path]


def test_pictures_are_decoded_when_they_are_taken_and_bad_ones_left_out_by_name() -> None:
    good = saved(picture(20, 20))
    shelf = Shelf({"0/a.png": good, "0/b.png": b"bad", "1/c.png": good, "1/d.png": b""})
    pictures = Pictures(shelf, PLAIN, torch.float64)
    assert len(pictures) == 4
    assert shelf.reads == []
    batch, taken = pictures.take([2, 1, 0])
    assert (batch.shape, batch.dtype, taken) == ((2, 3, 16, 16), torch.float64, [2, 0])
    assert shelf.reads == ["1/c.png", "0/b.png", "0/a.png"]
    assert list(pictures.unreadable) == ["0/b.png"]
    assert pictures.take([3])[1] == []
    assert pictures.classes(10) == [0, 0, 1, 1]


def test_without_pillow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingPackageError, match=r"upscale\[images\]"):
        decode(b"", PLAIN)
