"""What torch.fx cannot trace is captured by torch.export, and exports as exactly.

A capture takes seconds here, so that these networks are left out where many plans are tried.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import upscale
from trials.exactly import exported_exactly
from trials.lively import calm
from trials.masks import random_selection
from trials.nets import NETS, TRACED
from upscale import Selection
from upscale.errors import SelectionError
from upscale.masking import find_norms

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


class Deciding(nn.Module):
    """Convolutions with BatchNorms, one of them called twice, behind a decision on a size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] % 2:
            x = nn.functional.pad(x, (0, 1))
        x = self.norms[0](self.first(x)).relu()
        for norm in (self.norms[1], self.norms[2]):
            x = norm(self.second(x)).relu()
        made: Tensor = self.last(x)
        return made


def test_masked_outputs_leave_with_their_norms() -> None:
    torch.manual_seed(0)
    model = calm(Deciding()).double()
    assert find_norms(model, torch.randn(1, 3, 12, 12).double()) == {
        "first": ("norms.0",),
        "second": ("norms.1", "norms.2"),
    }
    kept = {"first": [0, 2, 5], "second": [1, 2, 6]}
    pruned, _ = exported_exactly(model, Selection(kept=kept, side="output"))
    shapes = {name: tuple(own.shape) for name, own in pruned.named_parameters()}
    # The second layer reads what the first makes, and what it makes itself, with one weight.
    assert shapes["first.weight"][0] == len({0, 2, 5} | {1, 2, 6})
    assert shapes["last.weight"][1] == 3


def test_a_mask_without_an_example_says_what_it_needs() -> None:
    selection = Selection(kept={"first": [0]}, side="output")
    with pytest.raises(SelectionError, match=r"pass example=, or .*after='layer'"):
        upscale.mask(Deciding(), selection)
