"""The walk, by hand: what rules say of a few lines, and what is then known of them."""

from __future__ import annotations

import numpy as np
import pytest

from upscale.flow.known import Known, agreed, firmest
from upscale.flow.lines import Line
from upscale.flow.spread import becomes_spread, merged, permuted, split, stays_spread
from upscale.flow.walk import Declined, Walk

X, Y, OUT = Line("x", 1), Line("y", 1), Line("out", 1)
IMAGE = (1, 4, 8, 8)


def walk_over(**shapes: tuple[int, ...]) -> Walk:
    return Walk({"x": IMAGE, "y": IMAGE, "out": IMAGE, **shapes})


def test_what_is_said_of_a_node_can_be_taken_back() -> None:
    walk = walk_over()
    walk.line(X)
    walk.ties(OUT, [X])
    assert walk.lines("out") == (OUT,)
    walk.forget({"out"})
    assert walk.lines("out") == ()
    assert walk.relations == []
    assert walk.lines("x") == (X,)


def test_a_line_that_interleaves_with_its_neighbours_is_declined() -> None:
    walk = walk_over(out=(1, 8))
    walk.line(X)
    with pytest.raises(Declined, match="interleaves"):
        walk.carries(OUT, X, np.array([0, 1, 0, 1, 2, 3, 2, 3]))


def test_nothing_is_taken_from_a_value_with_two_lines() -> None:
    walk = walk_over()
    walk.line(X)
    walk.line(Line("x", 2))
    with pytest.raises(Declined, match="more than one axis"):
        walk.takes(OUT, X, np.arange(4))


def test_a_bias_that_is_made_within_the_node_is_declined() -> None:
    walk = walk_over(weight=(4, 4, 1, 1), bias=(4,))
    walk.line(X)
    walk.made.add("bias")
    with pytest.raises(Declined, match="computed within"):
        walk.reduces(OUT, X, weight="weight", row_axis=0, column_axis=1, groups=1, bias=["bias"])


def test_computed_heads_stay_blocks_once_they_are_merged() -> None:
    walk = Walk({"x": (1, 4, 5), "heads": (1, 2, 2, 5), "out": (1, 2, 2, 5)})
    heads = split(X, (1, 4, 5), (1, 2, 2, 5))
    assert heads is not None
    assert not heads.computed
    walk.line(X)
    becomes_spread(walk, "heads", heads)
    stays_spread(walk, "out", "heads", heads.grid.axes)
    assert walk.splits["out"].computed
    assert walk.blocks[walk.splits["out"].root] == 2
    assert walk.lines("out") == ()
    assert walk.has_channels("out")


def test_axes_that_are_apart_do_not_merge() -> None:
    heads = split(X, (1, 4, 5), (1, 2, 2, 5))
    assert heads is not None
    apart = permuted(heads, (0, 1, 3, 2))
    assert merged(apart, (1, 2, 5, 2), (1, 2, 10)) is None


def test_parts_agree_where_they_say_the_same() -> None:
    one = Known(np.array([0.0, 1.0, np.nan]), np.array([True, False, False]))
    other = Known(np.array([0.0, 2.0, 3.0]), np.array([False, False, False]))
    both = agreed([one, other])
    assert both.constant.tolist() == [True, False, False]
    assert both.firm.tolist() == [False, False, False]


def test_a_firm_number_goes_before_one_that_depends_on_weights() -> None:
    firm = Known.zeros_at(np.array([0]), 2)
    loose = Known(np.array([0.0, 5.0]), np.array([False, False]))
    either = firmest(firm, loose)
    assert either.numbers.tolist() == [0.0, 5.0]
    assert either.firm.tolist() == [True, False]
