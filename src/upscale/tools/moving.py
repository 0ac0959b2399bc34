"""Put a finished file in the place of another, on every system."""

from __future__ import annotations

import time
from pathlib import Path

# How long somebody may be waited for who reads the old file, and how often it is tried.
PATIENCE_S, PAUSE_S = 1.0, 0.05


def put_in_place(new: Path, old: Path) -> None:
    """Move a file over another at once; whoever looks sees either, never a part.

    Windows refuses while somebody has the old one open; elsewhere readers keep what they opened.
    So it is tried again for a while, and what still refuses then is raised.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            new.replace(old)
            return
        except PermissionError:
            if time.monotonic() >= until:
                raise
        time.sleep(PAUSE_S)
