"""Locks between processes of one machine; whoever dies lets go."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    fcntl: Any = importlib.import_module("fcntl")
except ImportError:  # Windows has none; there only the order of work keeps cells apart
    fcntl = None

CORES = "cores"


@contextlib.contextmanager
def holding(name: str, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold a lock for a while, alone or with others that share it.

    Gives False, without the lock, where another has it and `wait` is false.
    """
    if fcntl is None:
        yield True
        return
    owner = os.getuid() if hasattr(os, "getuid") else 0
    path = Path(tempfile.gettempdir()) / f"upscale-{owner}-{name}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(handle, kind | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def cores(*, alone: bool) -> contextlib.AbstractContextManager[bool]:
    """The machine's cores: for one cell alone, or for any number that are not timed.

    This holds between sweeps and between the workers of Ray on one machine, too.
    """
    return holding(CORES, shared=not alone)
