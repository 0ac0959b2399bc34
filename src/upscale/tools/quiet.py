"""Warnings and torch's log kept quiet in one thread: their filters are the whole process's.

`warnings.catch_warnings` sets them aside and puts them back. Where two threads do so at once, one
puts back what the other had set, and it stays; and meanwhile nobody else is warned either.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


class _InThread:
    """Stands where a filter has its pattern, and matches whatever is said in its thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self.over = False

    def match(self, text: str) -> bool:
        return not self.over and threading.get_ident() == self._thread


@contextmanager
def unwarned(category: type[Warning] = Warning) -> Iterator[None]:
    """Hush warnings of a kind in this thread; other threads' are not touched.

    >>> with unwarned():
    ...     warnings.warn("nobody hears this")
    """
    here = _InThread()
    hush = ("ignore", here, category, None, 0)
    warnings.filters.insert(0, hush)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        # Another thread may just have set this list aside, and put it back later: then the filter
        # stays, and matches nothing.
        here.over = True
        if hush in warnings.filters:  # type: ignore[comparison-overlap]
            warnings.filters.remove(hush)  # type: ignore[attr-defined]


@contextmanager
def quietly() -> Iterator[None]:
    """Keep to ourselves what torch logs and warns of within; other threads log on.

    What was asked for by `TORCH_LOGS` is no warning, and stays.
    """
    thread = threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        ours = record.thread == thread and record.name.partition(".")[0] == "torch"
        return not ours or record.levelno < logging.WARNING

    torchs = [n for n in tuple(logging.root.manager.loggerDict) if n.partition(".")[0] == "torch"]
    handlers = {h for name in (None, *torchs) for h in logging.getLogger(name).handlers}
    if logging.lastResort is not None:
        handlers.add(logging.lastResort)
    for handler in handlers:
        handler.addFilter(passes)
    try:
        with unwarned():
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(passes)
