"""Which versions are tried together, and which of them are tried already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

# torchvision 0.22 goes with torch 2.7, 0.23 with 2.8, and so on.
VISION_AHEAD = 15


@dataclass(frozen=True, slots=True)
class Cell:
    """Versions that are installed together: of each, the newest that begins like this."""

    torch: str
    python: str
    numpy: str
    transformers: str

    @property
    def key(self) -> str:
        """What a record of it is kept under; no commit is part of it."""
        versions = asdict(self)
        return " ".join(f"{package}-{versions[package]}" for package in versions)

    @property
    def torchvision(self) -> str:
        """What torchvision is asked for: the one that is built for this torch.

        If there is none yet it is the one before, whose models do without its own operators.

        >>> Cell("2.7", "3.10", "1.26", "4").torchvision
        '<0.23'
        """
        _, minor = self.torch.split(".")
        return f"<0.{int(minor) + VISION_AHEAD + 1}"


# The newest and the oldest first: what they do, those between them do.
CELLS = (
    Cell("2.15", "3.13", "2", "5"),
    Cell("2.6", "3.10", "1.26", "4"),
    Cell("2.7", "3.10", "1.26", "4"),
    Cell("2.9", "3.12", "1.26", "5"),
    Cell("2.11", "3.12", "2", "4"),
    Cell("2.13", "3.11", "2", "5"),
)


def to_run(
    cells: Sequence[Cell],
    records: Mapping[str, Any],
    *,
    only: Iterable[str] = (),
    again: bool = False,
) -> list[Cell]:
    """The cells that are still to be tried, in their order.

    `only` names versions of torch; what has a record is left out unless it is tried `again`.

    >>> [cell.torch for cell in to_run(CELLS, {CELLS[0].key: {}}, only=["2.7", "2.9"])]
    ['2.9']
    """
    wanted = set(only)
    return [
        cell
        for cell in cells
        if not wanted or cell.torch in wanted
        if again or cell.key not in records
    ]
