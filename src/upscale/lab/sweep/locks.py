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
Waiting = Callable[[], object]


@contextlib.contextmanager
def holding(name: str, *, shared: bool = False, waiting: Waiting | None = None) -> Iterator[bool]:
    """Hold a lock for a while, alone or with others that share it.

    Where another has it, `waiting` is called and the lock waited for; without `waiting`, False is
    given at once, and no lock.
    """
    if fcntl is None:
        yield True
        return
    path = Path(tempfile.gettempdir()) / f"upscale-{os.getuid()}-{name}.lock"
    handle = _locked(path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, waiting)
    if handle is None:
        yield False
        return
    try:
        yield True
    finally:
        if name != CORES and not shared:
            path.unlink(missing_ok=True)
        os.close(handle)


def _locked(path: Path, kind: int, waiting: Waiting | None) -> int | None:
    """A handle that holds the lock of a path; None if another does, and it is not waited for."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                os.close(handle)
                return None
            waiting()
            fcntl.flock(handle, kind)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(handle)):
                return handle
        # Who held it before has taken the file away: it locks nothing any more.
        os.close(handle)


def cores(
    *, alone: bool, waiting: Waiting = lambda: None
) -> contextlib.AbstractContextManager[bool]:
    """The machine's cores: for one cell alone, or for any number that are not timed.

    This holds between sweeps and between the workers of Ray on one machine, too. `waiting` is
    called if another has them.
    """
    return holding(CORES, shared=not alone, waiting=waiting)
