"""Python's garbage collector paused, where many small objects are made at once."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Put garbage collection off. Captures and plans make many objects and no garbage, and
    looking through them again and again takes a fifth of the time.

    Not beside other threads: the collector is theirs too, and they may make garbage meanwhile.
    """
    pausing = gc.isenabled() and threading.active_count() == 1
    if pausing:
        gc.disable()
    try:
        yield
    finally:
        if pausing:
            gc.enable()
