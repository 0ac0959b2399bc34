"""How much a file may ask for: no more than its own length explains, whatever it says.

Bounds leave room for small files: what costs a few megabytes needs no explanation. `save` keeps
to the same bounds, so that whatever is saved can be loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from upscale.errors import StoreError

MEGABYTE = 2**20
MOST_AXES = 64  # torch's own bound


def header_share(size: int) -> int:
    """How long the header of a file may be: read, it takes thirty times its length in memory."""
    return 6 * MEGABYTE + size // 4


def most_values(size: int) -> int:
    """How many values a graph may have: each takes about a kilobyte, as code is made of it."""
    return 100_000 + size // 200


def check_values(tree: Any, size: int) -> None:
    """Raise if a tree of JSON has more values than a file of so many bytes explains."""
    count, waiting = 0, [tree]
    while waiting and count <= most_values(size):
        item = waiting.pop()
        count += 1
        if isinstance(item, (dict, list)):
            waiting.extend(item.values() if isinstance(item, dict) else item)
    if count > most_values(size):
        raise StoreError(
            f"the graph has more than {most_values(size):,} nodes and arguments, which is more "
            f"than a file of {size:,} bytes may hold"
        )


def most_example_bytes(size: int) -> int:
    """How large the inputs may be that a file says its model was captured with."""
    return 64 * MEGABYTE + 1000 * size


def most_made_bytes(size: int) -> int:
    """How large inputs may be that are made with numbers: a model may make much more of them."""
    return 8 * MEGABYTE + 10 * size


def check_shape(shape: Sequence[int], size: int, what: str) -> None:
    """Raise on a shape that a file of so many bytes does not explain, even without elements."""
    if len(shape) > MOST_AXES or any(not 0 <= own <= MEGABYTE + size for own in shape):
        raise StoreError(f"{what} has a shape that the file's {size:,} bytes do not explain")
