"""The documented way to add a rule works as documented."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor, nn

import upscale
from upscale.capture import Example
from upscale.flow.rules import RULES
from upscale.verify import compare

DOCUMENT = Path(__file__).parent.parent / "docs" / "adding-a-rule.md"


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.ops.demo.gate(self.a(x)))


def test_an_operation_of_ones_own_freezes_until_it_has_a_rule() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    exec(code, {})
    rule = RULES.pop("demo::gate")
    model, x = Gated().eval(), torch.randn(1, 3, 8, 8)
    selection = upscale.Selection(kept={"b": [0, 3, 4]})

    frozen = upscale.plan(model, x, selection)
    assert [f.operation for f in frozen.frozen] == ["demo::gate"]
    assert "a.weight" not in frozen.cuts or len(frozen.cuts["a.weight"][0]) == 8

    RULES["demo::gate"] = rule
    free = upscale.plan(model, x, selection)
    assert free.frozen == ()
    assert len(free.cuts["a.weight"][0]) == 3
    for plan in (frozen, free):
        exported, masked = upscale.export(model, plan), upscale.mask(model, selection)
        assert compare(exported, masked, Example.of(x)).exact
