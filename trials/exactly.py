"""An export held against the masked model, for the tests of many kinds of plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

import upscale
from trials.comparing import relative_error
from trials.nets import image
from upscale import Plan, Selection
from upscale.capture import Example

TOLERANCE = 1e-10


def widened(tensor: Tensor) -> Tensor:
    """A tensor in double precision, if it is of real numbers."""
    return tensor.double() if tensor.is_floating_point() else tensor


def exported_exactly(
    model: nn.Module,
    selection: Selection | Sequence[Selection],
    example: Callable[[int, int], Any] = image,
    order: str = "optimal",
    sums: str = "split",
) -> tuple[nn.Module, Plan]:
    """The export of a wide model, after a comparison with the masked one at two sizes."""
    wide = Example.of(example(1, 12)).map(widened)
    plan = upscale.plan(model, wide, selection, order=order, sums=sums)
    exported = upscale.export(model, plan)
    masked = upscale.mask(model, selection, example=wide)
    for batch, size in ((1, 12), (3, 16)):
        error = relative_error(exported, masked, example(batch, size))
        assert error <= TOLERANCE, f"batch {batch}, size {size}: {error}\n{plan}"
    return exported, plan
