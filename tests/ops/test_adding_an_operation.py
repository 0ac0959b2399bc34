"""The documented way to add an operation works as documented; what an entry omits stays off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import upscale
from upscale.capture import Example
from upscale.ops.operands import elementwise
from upscale.ops.pointwise import pointwise
from upscale.ops.table import OPERATIONS, Operation, register
from upscale.verify import compare

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-a-rule.md"


@torch.library.custom_op("demo::lift", mutates_args=())
def lift(x: Tensor) -> Tensor:
    """One at zero: a masked channel is not zero behind it."""
    return torch.cos(x)


lift.register_fake(torch.empty_like)


@pytest.fixture(autouse=True)
def _own_table() -> Iterator[None]:
    """Leave the table as it was."""
    before = dict(OPERATIONS)
    yield
    OPERATIONS.clear()
    OPERATIONS.update(before)


class Between(nn.Module):
    """A convolution, an operation and a reader."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)
        self._operation = operation

    def forward(self, x: Tensor) -> Tensor:
        return self.b(getattr(torch.ops.demo, self._operation)(self.a(x)))


def channels_between(model: nn.Module, x: Tensor, selection: upscale.Selection) -> int:
    """How many channels the operation is given once exported; the export must be exact."""
    exported = upscale.export(model, upscale.plan(model, x, selection))
    assert compare(exported, upscale.mask(model, selection), Example.of(x)).exact
    return int(exported.get_submodule("a").out_channels)


def test_an_operation_of_ones_own_freezes_until_it_is_added_as_the_page_says() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    exec(code, {})
    entry = OPERATIONS.pop("demo::gate")
    model, x = Between("gate").eval(), torch.randn(1, 3, 8, 8)
    selection = upscale.Selection(kept={"b": [0, 3, 4]})

    assert [f.operation for f in upscale.plan(model, x, selection).frozen] == ["demo::gate"]
    assert channels_between(model, x, selection) == 8

    register("demo::gate", entry)
    assert upscale.plan(model, x, selection).frozen == ()
    assert channels_between(model, x, selection) == 3


def test_an_operation_that_is_one_at_zero_is_folded_only_once_its_entry_says_how() -> None:
    # What is folded is rounded to the precision of the weights.
    model, x = Between("lift").double().eval(), torch.randn(1, 3, 8, 8).double()
    selection = upscale.Selection(kept={"a": [0, 3, 4]}, side="output")

    register("demo::lift", Operation(flow=pointwise))
    assert channels_between(model, x, selection) == 8

    register("demo::lift", Operation(flow=pointwise, constants=elementwise))
    assert channels_between(model, x, selection) == 3


def test_every_facet_is_off_until_an_entry_names_it() -> None:
    assert not any(getattr(Operation(), facet.name) for facet in fields(Operation))
    assert OPERATIONS["demo::never_registered"] == Operation()


def test_every_entry_is_for_an_operation_that_torch_has() -> None:
    assert [
        name for name in OPERATIONS if ":" not in name and not hasattr(torch.ops.aten, name)
    ] == []
