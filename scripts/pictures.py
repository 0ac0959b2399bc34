"""Draw the pictures in `docs/how-it-works.md`: `python -m scripts.pictures [DIRECTORY]`.

Each is `upscale.report.picture` of a plan. Those of small networks have masks chosen to show one
thing; those of the digits network have the masks that `select` chooses. `docs/images/order.svg` is
drawn by `examples/picture.py`, the plots by the benchmarks that measured them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import upscale
from upscale.report import picture
from upscale.zoo import digits

IMAGES = Path(__file__).parents[1] / "docs" / "images"


class Fork(nn.Module):
    """One tensor of eight channels, three readers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.left, self.middle, self.right = (nn.Conv2d(8, 4, 1) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stem(x)
        return self.left(x), self.middle(x), self.right(x)


class Stream(nn.Module):
    """A residual stream of eight channels: two blocks, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)
        self.block1, self.block2 = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.block1(x).relu()
        x = x + self.block2(x).relu()
        return self.head(x)  # type: ignore[no-any-return]


def fork() -> str:
    """Masks that one order serves."""
    kept = {"left": [0, 2, 5, 7], "middle": [2, 3, 5, 6], "right": [3, 4, 6]}
    return drawn(Fork(), kept)


def conflict() -> str:
    """Masks that no order serves: each two readers share channels the third does without."""
    kept = {"left": [0, 2, 3, 6], "middle": [2, 4, 6, 7], "right": [0, 3, 4, 7]}
    return drawn(Fork(), kept)


def stream() -> str:
    """Live sets that shrink with depth."""
    kept = {"block1": [0, 3, 5, 6, 7], "block2": [1, 3, 6], "head": [1, 4, 6]}
    return drawn(Stream(), kept)


def windows() -> str:
    """The digits network, each reader within a window of one order."""
    model, x = digits(), torch.zeros(1, 1, 8, 8)
    selection = upscale.select(model, x, amount=0.3, constraint="contiguous")
    return picture(upscale.plan(model, x, selection, widen=False))


PICTURES: dict[str, Callable[[], str]] = {
    "fork.svg": fork,
    "conflict.svg": conflict,
    "stream.svg": stream,
    "windows.svg": windows,
}


def drawn(model: nn.Module, kept: dict[str, list[int]]) -> str:
    """The plan for a small network, with every layer as narrow as its masks."""
    selection = upscale.Selection(kept=kept)
    return picture(upscale.plan(model, torch.zeros(1, 3, 8, 8), selection, widen=False))


def main(directory: Path) -> None:
    for name, draw in PICTURES.items():
        (directory / name).write_text(draw(), encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
