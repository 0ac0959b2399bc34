"""Watching: what a process does, and how much memory it takes, while something is tried."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_SECONDS = 5.0
MEGABYTE = 2**20


class Watch:
    """Listens to what Python does while a file loads: files written, processes, connections."""

    def __init__(self) -> None:
        self.on = False
        self.heard: list[str] = []
        self.most_seconds, self.most_taken = 0.0, 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        outside = event.startswith(
            ("os.system", "os.exec", "os.spawn", "os.posix_spawn", "socket.")
        )
        if (
            writes
            or outside
            or event in ("subprocess.Popen", "os.remove", "os.rename", "pickle.find_class")
        ):
            self.heard.append(f"{event} {args!r:.200}")

    def during(self, act: Callable[[], Any], size: int) -> tuple[Any, str | None]:
        """What came of an act on something of so many bytes, and what was wrong with how."""
        forget_peak()
        before, self.heard, self.on = memory("VmRSS"), [], True
        began = time.process_time()  # of this process: a busy machine is no fault
        try:
            result = act()
        finally:
            self.on = False
        seconds, taken = time.process_time() - began, memory("VmHWM") - before
        self.most_seconds = max(self.most_seconds, seconds)
        self.most_taken = max(self.most_taken, taken)
        if self.heard:
            return result, self.heard[0]
        if seconds > MOST_SECONDS:
            return result, f"{seconds:.1f} s"
        if taken > 10 * size + 200 * MEGABYTE:
            return result, f"{taken // MEGABYTE} MiB for {size:,} bytes"
        return result, None


def forget_peak() -> None:
    """Have the kernel count the peak of memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(what: str) -> int:
    """Bytes of memory: `VmRSS` as it is, `VmHWM` the peak, `VmSize` of addresses."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(what)
