"""The code of exports, for six blocks: what the rewrite writes is what one would write by hand.

Beside this file, `snapshots/` holds each export's code with the shapes of its parameters. After a
change that is meant to alter them, renew them and read the difference:

    UPSCALE_RENEW_SNAPSHOTS=1 python -m pytest tests/rewrite/test_snapshots.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from trials.comparing import relative_error
from upscale.verify import TOLERANCE

SNAPSHOTS = Path(__file__).parent / "snapshots"
RENEW = "UPSCALE_RENEW_SNAPSHOTS"


class Chain(nn.Module):
    """One layer after another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.last = nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.norm(self.first(x))))


class Fork(nn.Module):
    """Two layers that read one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = (
            nn.Conv2d(3, 6, 1),
            nn.Conv2d(6, 4, 1),
            nn.Conv2d(6, 4, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.first(x))
        return self.left(x), self.right(x)


class Residual(nn.Module):
    """A layer whose result is added to what it read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = (
            nn.Conv2d(3, 6, 1),
            nn.Conv2d(6, 6, 1),
            nn.Conv2d(6, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.last(x + F.relu(self.inner(x)))


class Concatenation(nn.Module):
    """Two tensors side by side, read by one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = (
            nn.Conv2d(3, 4, 1),
            nn.Conv2d(3, 4, 1),
            nn.Conv2d(8, 4, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat((F.relu(self.left(x)), F.relu(self.right(x))), dim=1))


class Gate(nn.Module):
    """Squeeze and excitation: a tensor times a number for each of its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 4, 1)
        self.squeeze, self.excite = nn.Conv2d(6, 3, 1), nn.Conv2d(3, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        scale = self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()
        return self.last(x * scale)


class Attention(nn.Module):
    """Two heads of three features, added to what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(6, 6) for _ in range(3))
        self.last = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            layer(x).unflatten(-1, (2, 3)).transpose(1, 2)
            for layer in (self.queries, self.keys, self.values)
        ]
        made = F.scaled_dot_product_attention(*heads)
        return x + self.last(made.transpose(1, 2).flatten(-2))


IMAGE, TOKENS = (2, 3, 4, 4), (2, 5, 6)
# What each layer keeps, on the input side and on the output side.
BLOCKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, dict[str, list[int]]]]]
BLOCKS = {
    "chain": (Chain, IMAGE, {"input": {"last": [0, 2, 3]}, "output": {"first": [0, 2, 3]}}),
    "fork": (
        Fork,
        IMAGE,
        {"input": {"left": [0, 2, 4], "right": [2, 4, 5]}, "output": {"first": [1, 2, 5]}},
    ),
    "residual": (
        Residual,
        IMAGE,
        {
            "input": {"inner": [0, 1, 4], "last": [1, 2, 4, 5]},
            "output": {"first": [0, 1, 4, 5], "inner": [1, 2, 4]},
        },
    ),
    "concatenation": (
        Concatenation,
        IMAGE,
        {"input": {"last": [0, 3, 4, 5]}, "output": {"left": [0, 3], "right": [0, 1]}},
    ),
    "gate": (
        Gate,
        IMAGE,
        {
            "input": {"squeeze": [0, 2], "last": [0, 2, 3, 5]},
            "output": {"first": [0, 2, 3, 5], "squeeze": [0, 2], "excite": [0, 2, 3, 5]},
        },
    ),
    "attention": (
        Attention,
        TOKENS,
        {"input": {"last": [0, 2, 3, 4]}, "output": {"values": [0, 2, 3, 4]}},
    ),
}
# Masks on either side leave the very same code, and parameters of the same shapes.
ALIKE = {"chain", "concatenation", "attention"}


def exported(block: str, side: str) -> tuple[torch.fx.GraphModule, nn.Module, Tensor]:
    """The export of a block, its masked model, and an input."""
    make, shape, kept = BLOCKS[block]
    torch.manual_seed(0)
    model, x = make().double().eval(), torch.randn(shape, dtype=torch.float64)
    selection = upscale.Selection(kept=kept[side], side=side)
    pruned = upscale.export(model, upscale.plan(model, x, selection))
    return pruned, upscale.mask(model, selection), x


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_blocks_export_reads_as_it_is_written_down_and_is_exact(block: str, side: str) -> None:
    pruned, masked, x = exported(block, side)
    assert relative_error(pruned, masked, x) <= TOLERANCE
    shapes = [f"# {name}: {tuple(p.shape)}" for name, p in pruned.named_parameters()]
    text = "\n".join((pruned.code.strip(), "", *shapes, ""))
    path = SNAPSHOTS / f"{block if block in ALIKE else f'{block}_{side}'}.py.txt"
    if os.environ.get(RENEW):
        path.write_text(text)
    assert path.read_text() == text, f"if that is meant, renew it: see {Path(__file__).name}"
