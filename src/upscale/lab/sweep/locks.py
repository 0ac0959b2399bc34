"""Locks between processes of one machine; whoever dies lets go."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator
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
    handle = _locked(path, shared=shared, wait=wait)
    if handle is None:
        yield False
        return
    try:
        yield True
    finally:
        if name != CORES and not shared:
            path.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path, *, shared: bool, wait: bool) -> int | None:
    """A handle that holds the lock of a path; None if another does."""
    kind = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, kind)
            if os.path.samestat(path.stat(), os.fstat(handle)):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except FileNotFoundError:
            pass
        # Who held it before has taken the file away: it locks nothing any more.
        os.close(handle)


@contextlib.contextmanager
def cores(*, alone: bool, waiting: Callable[[], object] | None = None) -> Iterator[None]:
    """The machine's cores: for one cell alone, or for any number that are not timed.

    This holds between sweeps and between the workers of Ray on one machine, too. `waiting` is
    called if another has them.
    """
    with holding(CORES, shared=not alone, wait=False) as ours:
        if ours:
            yield
            return
    if waiting is not None:
        waiting()
    with holding(CORES, shared=not alone):
        yield
