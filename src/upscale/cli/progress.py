"""Progress on standard error: what is being done, and how far it is."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

WIDTH = 24
EVERY = 0.5
SLOW = 2.0
SILENT = 30.0


class Progress:
    """A bar of steps that shows itself once something takes over two seconds.

    On a terminal one line is drawn anew; elsewhere every slow step gets a line of its own, and of
    many quick ones one after every half minute.
    """

    def __init__(self, steps: int, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._steps, self._quiet, self._stream = steps, quiet, stream or sys.stderr
        self._done, self._doing, self._since = 0, "", time.monotonic()
        self._shown = False
        self._detail, self._head, self._said = "", "", 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Progress:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        if not self._quiet:
            self._thread.join()
            if self._shown and self._stream.isatty():
                self._stream.write("\r\x1b[K")
                self._stream.flush()

    def step(self, doing: str) -> None:
        """Say what begins now; what was before is done."""
        self._done += bool(self._doing)
        self._doing, self._since = doing, time.monotonic()
        self._detail = self._head = ""

    def skip(self, steps: int) -> None:
        """Count steps that were done before this began."""
        self._done += steps

    def say(self, line: str) -> None:
        """Show a line that stays."""
        if not self._quiet:
            clear = "\r\x1b[K" if self._stream.isatty() else ""
            self._stream.write(f"{clear}{line}\n")
            self._stream.flush()

    def tell(self, line: str) -> None:
        """Show a line that stays, and those that begin like it, up to a colon, in the bar.

        `refitting: 3 of 9 operations, 8 s left` comes again and again: one every half minute
        stays, so that whoever reads a file of them sees that it goes on.
        """
        head, now = line.partition(":")[0], time.monotonic()
        self._detail = line
        if head != self._head or now - self._said >= SILENT:
            self._head, self._said = head, now
            self.say(line)

    def _run(self) -> None:
        told, last = "", time.monotonic()
        while not self._stop.wait(EVERY):
            now = time.monotonic()
            taken, silent = now - self._since, now - last >= SILENT
            if taken < SLOW and not silent and not self._shown:
                continue
            self._shown = True
            if self._stream.isatty():
                full = WIDTH * self._done // max(1, self._steps)
                bar = "#" * full + "-" * (WIDTH - full)
                detail = f"; {self._detail}" if self._detail else ""
                self._stream.write(f"\r\x1b[K[{bar}] {self._doing}, {taken:.0f} s{detail}")
            elif self._doing != told and (taken >= SLOW or silent):
                told, last = self._doing, now
                self._stream.write(f"[{self._done + 1}/{self._steps}] {self._doing}\n")
            self._stream.flush()
