"""Widening: a layer reads a few channels more than it keeps where that spares a dear copy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.flow.building import IMAGE, Building, kept, weight
from upscale.flow.liveness import columns_of
from upscale.planning.layouts import Layouts
from upscale.planning.search import ANYWHERE
from upscale.planning.widening import widen

PIXELS = 224 * 224
CHANNELS = 32
HOLED = [channel for channel in range(CHANNELS) if channel % 4 != 1]


def widened(
    pixels: int, columns: list[int], *, rows: int = 2, groups: int = 1
) -> dict[str, list[int]]:
    """What a layer that keeps these columns of 32 reads, where a second keeps them all."""
    net = Building(pixels)
    net.layer("stem", IMAGE, CHANNELS)
    net.elementwise("relu", "stem")
    net.layer("narrow", "relu", rows * groups, groups=groups)
    net.layer("whole", "relu", 2)
    net.returns("narrow", "whole")
    flow, own = net.flow(), {"narrow": columns}
    layouts = Layouts(flow)
    wide, saved = widen(flow, net.liveness(own), columns_of(flow, kept(own)), layouts, ANYWHERE)
    assert (saved > 0) == bool(wide)
    return {layer: read.tolist() for layer, read in wide.items()}


def test_where_a_copy_is_dear_a_layer_reads_what_lies_between() -> None:
    (read,) = widened(PIXELS, HOLED).values()
    assert set(HOLED) < set(read)
    assert len(read) <= 1.5 * len(HOLED)
    assert np.all(np.diff(read) == 1)


def test_where_a_copy_is_cheap_nothing_is_widened() -> None:
    assert widened(4, HOLED) == {}


def test_where_computing_more_is_dearer_than_a_copy_nothing_is_widened() -> None:
    assert widened(PIXELS, HOLED, rows=2000) == {}


def test_what_is_a_slice_anyway_is_not_widened() -> None:
    assert widened(PIXELS, list(range(5, 20))) == {}


@pytest.mark.parametrize("columns", [list(range(0, CHANNELS, 2)), []])
def test_a_layer_never_becomes_much_wider_than_what_it_keeps(columns: list[int]) -> None:
    assert widened(PIXELS, columns) == {}


def test_a_grouped_layer_is_never_widened() -> None:
    assert widened(PIXELS, [0, 2, 3], groups=2) == {}


def test_the_one_that_is_named_is_the_layer_that_reads_more() -> None:
    assert list(widened(PIXELS, HOLED)) == [weight("narrow")]
