"""An album: image files in a folder or a zip, each read when it is asked for, up to a bound.

album/cats/1.jpg  album/cats/2.jpg  album/dogs/1.jpg    folders: cats cats dogs
photos.zip: photos/cats/1.jpg …                         the same: what all share says nothing
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Protocol

from upscale.errors import UpscaleError

SUFFIXES = frozenset(".bmp .gif .jpeg .jpg .pgm .png .pnm .ppm .tif .tiff .webp".split())
# A file beyond this is no photograph; a zip may say less than it unpacks to.
MOST_BYTES = 1 << 26


class ImageError(UpscaleError):
    """A file cannot be read as an image."""


class Album(Protocol):
    """Image files, by path within the place where they lie."""

    @property
    def paths(self) -> tuple[PurePosixPath, ...]:
        """The path of each file, sorted."""

    def read(self, path: PurePosixPath) -> bytes:
        """What a file holds; raises `ImageError` if that cannot be had."""


@dataclass(frozen=True)
class Folder:
    """The image files of a folder, and of the folders in it."""

    root: Path

    @cached_property
    def paths(self) -> tuple[PurePosixPath, ...]:
        return tuple(sorted(PurePosixPath(own.relative_to(self.root)) for own in self._files()))

    def read(self, path: PurePosixPath) -> bytes:
        try:
            with (self.root / path).open("rb") as file:
                return _bounded(file.read(MOST_BYTES + 1))
        except OSError as error:
            raise ImageError(error.strerror or str(error)) from error

    def _files(self) -> Iterator[Path]:
        seen: set[str] = set()  # links may lead back to a folder above
        for folder, below, names in os.walk(self.root, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                below.clear()
                continue
            seen.add(real)
            for name in names:
                path = Path(folder, name)
                if _is_image(path) and path.is_file():
                    yield path


@dataclass(frozen=True)
class Zip:
    """The image files of a zip; nothing is unpacked to disk."""

    file: Path

    @cached_property
    def paths(self) -> tuple[PurePosixPath, ...]:
        return tuple(sorted(self._members))

    def read(self, path: PurePosixPath) -> bytes:
        member = self._members[path]
        if member.flag_bits & 1:
            raise ImageError("it is encrypted")
        try:
            with self._opened.open(member) as file:
                return _bounded(file.read(MOST_BYTES + 1))
        except (OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
            raise ImageError(str(error)) from error

    @cached_property
    def _opened(self) -> zipfile.ZipFile:
        return zipfile.ZipFile(self.file)

    @cached_property
    def _members(self) -> dict[PurePosixPath, zipfile.ZipInfo]:
        members = ((PurePosixPath(own.filename), own) for own in self._opened.infolist())
        return {path: own for path, own in members if not own.is_dir() and _is_image(path)}


def folders(paths: tuple[PurePosixPath, ...]) -> list[str] | None:
    """The folder that each file lies in, below what all have in common; none if one has none.

    >>> folders((PurePosixPath("a/cats/1.png"), PurePosixPath("a/dogs/old/1.png")))
    ['cats', 'dogs']
    """
    parts = [path.parts[:-1] for path in paths]
    alike = takewhile(lambda own: len(set(own)) == 1, zip(*parts, strict=False))
    common = len(list(alike))
    if any(len(own) == common for own in parts):
        return None
    return [own[common] for own in parts]


def _is_image(path: PurePosixPath | Path) -> bool:
    return (
        path.suffix.lower() in SUFFIXES
        and not path.name.startswith(".")
        and "__MACOSX" not in path.parts
    )


def _bounded(data: bytes) -> bytes:
    if len(data) > MOST_BYTES:
        raise ImageError(f"it holds more than {MOST_BYTES >> 20} MiB")
    return data
