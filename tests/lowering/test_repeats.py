"""Repeats: of channels that always hold the same number, one is computed and read for all."""

from __future__ import annotations

import numpy as np

from tests.flow.building import IMAGE, Building, line
from tests.lowering.building import repeat
from upscale.flow.liveness import find_live

NAN = float("nan")


def gate(*, squeezed: bool = True) -> Building:
    """`head(sigmoid(excite(…)))` on six channels, of one pixel or of many."""
    net = Building()
    net.layer("stem", IMAGE, 3)
    if squeezed:
        net.squeeze("mean", "stem")
    net.layer("excite", "mean" if squeezed else "stem", 6)
    net.elementwise("sigmoid", "excite")
    net.layer("head", "sigmoid", 2)
    net.returns("head")
    return net


def repeated(net: Building, numbers: list[float], *, firm: bool = True) -> list[list[int]]:
    """For each value that is computed once, which position is read for each."""
    flow = repeat(net, "sigmoid", numbers, firm=firm)
    return [select.position.tolist() for _, select in flow.selects]


def test_the_first_of_equal_numbers_is_read_for_all() -> None:
    assert repeated(gate(), [NAN, 0.5, NAN, 0.5, 0.25, 0.5]) == [[0, 1, 2, 1, 4, 1]]


def test_zeros_and_what_differs_is_left_alone() -> None:
    assert repeated(gate(), [NAN, 0.0, NAN, 0.0, 0.25, 0.5]) == []


def test_numbers_that_other_weights_would_change_are_left_alone() -> None:
    assert repeated(gate(), [0.5] * 6, firm=False) == []


def test_channels_of_many_pixels_are_not_copied_for_each_other() -> None:
    assert repeated(gate(squeezed=False), [0.5] * 6) == []


def test_only_the_channels_read_are_needed_of_what_is_computed_once() -> None:
    live = find_live(repeat(gate(), "sigmoid", [NAN, *[0.5] * 5]), {}).lines
    assert np.flatnonzero(live[line("excite")]).tolist() == [0, 1]
    assert np.flatnonzero(live[line("sigmoid")]).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_channel_that_is_read_for_another_keeps_a_class_of_its_own() -> None:
    flow = repeat(gate(), "sigmoid", [NAN, *[0.5] * 5])
    ((_, select),) = flow.selects
    assert select.borrowed is not None
    assert select.borrowed.tolist() == [False, False, True, True, True, True]
    assert len(set(flow.classes[line("sigmoid")].tolist())) == 6
