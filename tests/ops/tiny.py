"""The smallest model that has channels: a convolution, and one thing that is done to what it makes.

What the analysis says of the last is written in a few words, so that a table can hold it:

    out.1 ties conv.1          position i depends on position i
    out.1 ties conv.1 whole    and on all others
    absorbs conv.1             all are needed, none is told apart after
    out.1 of q.-1 k.-1         a position for each head
    q.-1 k.-1 serves out.-1    heads leave with those of the result
    out.1 folds conv.1 0+2 1+3 several positions meet
    out.1 carries conv.1 1x24  channels merge with 24 places each
    out.1 reduces conv.1       a weight contracts them
    out.1 takes conv.1:0 - 1   positions are taken from lines; - is zero
    needs all: why             no rule vouches for it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture import Captured, Example, capture
from upscale.flow.analyse import analyse
from upscale.flow.lines import Line
from upscale.flow.relations import Absorb, Carry, Fold, Pass, Reduce, Relation, Serve

Made = Callable[[nn.Module, Tensor], Any]


class Tiny(nn.Module):
    """Four channels of 4 × 6 places, two images, and parameters of several shapes."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.each = nn.Parameter(torch.rand(4))
        self.scale = nn.Parameter(torch.rand(4, 1, 1))
        self.slope = nn.Parameter(torch.rand(1))
        self.token = nn.Parameter(torch.rand(1, 4, 1, 1))
        self.filters = nn.Parameter(torch.rand(5, 4, 1, 1))
        self.wide = nn.Parameter(torch.rand(5, 6))
        self.many = nn.Parameter(torch.rand(96, 4))
        self._made = made

    def forward(self, x: Tensor) -> Any:
        return self._made(self, self.conv(x))


def captured(made: Made) -> Captured:
    """The tiny model, traced."""
    return capture(Tiny(made).eval(), Example.of(torch.randn(2, 3, 4, 6)))


def said(made: Made) -> str:
    """What the analysis says of the last operation."""
    seen = captured(made)
    *_, step, _ = analyse(seen).steps
    if not step.relations:
        return f"needs all: {step.frozen.because}" if step.frozen else "needs all"
    out = {value: f"out{value[len(step.node) :]}" for value in step.makes}
    return "; ".join(_words(relation, out) for relation in step.relations)


def _words(relation: Relation, out: dict[str, str]) -> str:
    def word(line: Line) -> str:
        return f"{out.get(line.value, line.value)}.{line.axis}"

    if isinstance(relation, Serve):
        reads = " ".join(map(word, relation.reads))
        by = word(relation.by)
        return f"{by} of {reads}" if relation.makes else f"{reads} serves {by}"
    if isinstance(relation, Absorb):
        return f"absorbs {word(relation.read)}"
    made, reads = word(relation.out), " ".join(map(word, relation.reads))
    if isinstance(relation, Pass):
        return f"{made} ties {reads}{' whole' if relation.whole else ''}"
    if isinstance(relation, Reduce):
        return f"{made} reduces {reads}{' each' if relation.channelwise else ''}"
    if isinstance(relation, Carry):
        return f"{made} carries {reads} {relation.outer}x{relation.inner}"
    if isinstance(relation, Fold):
        table = " ".join("+".join(map(str, row)) for row in relation.table.tolist())
        return f"{made} folds {reads} {table}"
    taken, before = [], -1
    for operand, position in zip(
        relation.operand.tolist(), relation.position.tolist(), strict=True
    ):
        name = f"{word(relation.reads[operand])}:" if operand not in (-1, before) else ""
        taken.append("-" if operand < 0 else f"{name}{position}")
        before = before if operand < 0 else operand
    return f"{made} takes {' '.join(taken)}"
