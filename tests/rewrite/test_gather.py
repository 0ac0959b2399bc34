"""Gathers: channel by channel, on the channel axis or from a matrix of places by channels."""

from __future__ import annotations

import pytest
import torch

from upscale.rewrite.gather import Gather


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("shape", [(2, 6), (2, 5, 6), (2, 6, 4, 3), (2, 6, 2, 3, 2), (0, 5, 6)])
def test_both_forms_of_a_gather_give_the_same(shape: tuple[int, ...]) -> None:
    x, axis = torch.randn(shape), shape.index(6)
    plain, rows = (Gather(axis, (4, 1, 2), rows=rows) for rows in (False, True))
    assert torch.equal(plain(x), rows(x))
    assert torch.equal(torch.jit.script(rows)(x), plain(x))
