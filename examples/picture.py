"""Draw who reads which channels of the shipped digits network, before and after ordering.

The network is pruned as in the demo: every layer drops the 30% of its input channels that its
weights need least by L2. The picture shows its three tensors with several readers: two residual
streams and the gate of a squeeze-excite. Give a path to write it elsewhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import upscale
from upscale.report import picture
from upscale.zoo import digits

AMOUNT = 0.3
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "order.svg"


def main(path: Path) -> None:
    model, example = digits(), torch.zeros(1, 1, 8, 8)
    selection = upscale.select(model, example, amount=AMOUNT)
    in_place = upscale.plan(model, example, selection, order="none")
    ordered = upscale.plan(model, example, selection, widen=False)
    path.write_text(picture(ordered), encoding="utf-8")
    print(f"wrote {path.name}: {in_place.copies} copies before ordering, {ordered.copies} after")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
