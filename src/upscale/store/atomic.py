"""Files that are replaced at once: whoever looks sees the old one or the new one, never a part."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from upscale.errors import StoreError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A place to write a file in, which takes the place of `path` once it is whole.

    Files written beside it, such as large weights, are moved first. Raises `StoreError` where
    nothing can be written; an interrupted write leaves `path` as it was.
    """
    target = Path(path).resolve()  # a link stays a link to what is replaced
    try:
        place = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    try:
        fresh = place / target.name
        yield fresh
        for part in sorted(place.iterdir(), key=lambda part: part == fresh):
            _sync(part)
            part.replace(target.parent / part.name)
        _sync(target.parent)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _sync(path: Path) -> None:
    """Make sure that a file, or the names in a directory, are on disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # this system cannot open directories
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
