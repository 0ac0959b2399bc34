"""Deadlines: cells that take longer than they may, ended from within their own process."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from upscale.lab.sweep.cells import GridError

AGAIN_S = 1.0
GRACE_S = 5.0


class TimedOut(BaseException):
    """A cell took longer than it may. Not an `Exception`: a metric that catches those goes on."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it took longer than {seconds:g} s")


def check_deadlines() -> None:
    """Raise where this process cannot end a cell that takes too long."""
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        raise GridError(
            "a cell that takes too long can be ended in the main thread alone, and not on every "
            'system; run the sweep on="processes"'
        )


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `TimedOut` in what runs longer than this, at its next step in Python.

    A call of native code that never returns takes no such step, and goes on.
    """
    check_deadlines()
    armed = True

    def late(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise TimedOut(seconds)

    before = signal.signal(signal.SIGALRM, late)
    try:
        # Again and again: code that catches everything may catch it, too.
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def deadly_deadline(seconds: float) -> Iterator[None]:
    """A deadline after which, a little later, the process itself ends: native code or not."""
    with open(os.devnull, "w") as nowhere, deadline(seconds):  # noqa: PTH123  # it is no path
        faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=nowhere)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
