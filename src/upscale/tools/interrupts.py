"""Ctrl-C where upscale is the program: status 130 and no traceback, from its first import on.

Nothing here loads torch: that takes seconds, in which somebody may change their mind.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

STATUS = 130


def is_program() -> bool:
    """Whether Python was started to run upscale: by its script, or by `-m upscale`."""
    name = sys.argv[0] if sys.argv else ""
    if name == "-m":  # a module is being looked for, and its package comes first
        return not {"upscale", "-mupscale"}.isdisjoint(sys.orig_argv)
    return Path(name).stem in ("upscale", "upscale-script")


def leave(signum: int = 0, frame: FrameType | None = None) -> None:
    """End the program at once, quietly."""
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"upscale: interrupted\n")
    os._exit(STATUS)


def end_interrupted() -> None:
    """End the program with its status for interrupts; elsewhere this does nothing.

    Python itself would end by the signal if the interrupt came while it ran code from a string,
    as dataclasses and traced modules do, although it was caught.
    """
    if signal.getsignal(signal.SIGINT) is leave:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STATUS)


def watch() -> None:
    """From now on Ctrl-C ends the program, unless somebody else takes care of it."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if usual and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, leave)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` for a while, so that what is under way is tidied up.

    Where Python can only print it, in the midst of freeing something, it is raised again after.
    This is for the program alone: whoever calls its functions keeps their own ways.
    """
    if signal.getsignal(signal.SIGINT) is not leave:
        yield
        return
    usual = sys.unraisablehook

    def again(lost: Any) -> None:
        if issubclass(lost.exc_type, KeyboardInterrupt):
            _thread.interrupt_main()
        else:
            usual(lost)

    sys.unraisablehook = again
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        signal.signal(signal.SIGINT, leave)
        sys.unraisablehook = usual


if is_program():
    watch()
