"""Files that are replaced at once: whoever looks sees the old one or the new one, never a part."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from upscale.errors import StoreError
from upscale.tools.moving import put_in_place


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A place to write a file in, which takes the place of `path` once it is whole.

    Files written beside it, such as large weights, are moved first. A file that was there keeps
    its permissions. Raises `StoreError` where nothing can be written; an interrupted write leaves
    `path` as it was.
    """
    target = _target(path)
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name[:100]}.", dir=target.parent, ignore_cleanup_errors=True
        ) as place:
            fresh = Path(place, target.name)
            yield fresh
            for part in sorted(fresh.parent.iterdir(), key=lambda part: part == fresh):
                _sync(part)
                _permit_as(target.parent / part.name, part)
                put_in_place(part, target.parent / part.name)
            _sync(target.parent)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error.strerror}") from error


def _target(path: str | os.PathLike[str]) -> Path:
    """The file that a path leads to: a link stays a link to what is replaced."""
    try:
        target = Path(path).resolve()
        # What is still a link leads in a circle, which Python 3.13 no longer says by itself.
        known = target.exists() or target.is_symlink()
        there = target.stat().st_mode if known else None
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        # Links in a circle are an OSError or a RuntimeError, as Python's version has it.
        raise StoreError(f"{path!s:.200} cannot be written: it leads to no file") from error
    if there is not None and not stat.S_ISREG(there):
        raise StoreError(f"{target} cannot be written: it is there, and no regular file")
    return target


def _permit_as(old: Path, new: Path) -> None:
    """Give a new file the permissions of the one it replaces, if there is one."""
    if old.exists():
        there = old.stat()
        with suppress(OSError, AttributeError):  # the group may not be ours to give, or no notion
            os.chown(new, -1, there.st_gid)
        new.chmod(stat.S_IMODE(there.st_mode))


def _sync(path: Path) -> None:
    """Make sure that a file, or the names in a directory, are on disk."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):
        return  # this system cannot open directories
    # Windows writes out only what is open for writing, others open directories for reading alone.
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
