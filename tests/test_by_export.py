"""What torch.fx cannot trace is captured by torch.export, and exports as exactly.

A capture takes seconds here, so that these networks are left out where many plans are tried.
"""

from __future__ import annotations

import pytest
import torch

from tests.exactly import exported_exactly
from tests.masks import calm, random_selection
from tests.nets import NETS, TRACED

UNTRACED = [name for name in NETS if name not in TRACED]


@pytest.mark.parametrize("sides", [("input",), ("output",), ("input", "output")], ids="+".join)
@pytest.mark.parametrize("order", ["optimal", "none"])
@pytest.mark.parametrize("name", UNTRACED)
def test_an_export_equals_the_masked_model(name: str, order: str, sides: tuple[str, ...]) -> None:
    make, example = NETS[name]
    torch.manual_seed(0)
    model = calm(make()).double()
    selections = [random_selection(model, 0.4, seed, side=s) for seed, s in enumerate(sides)]
    exported_exactly(model, selections, example, order)
