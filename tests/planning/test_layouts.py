"""Layouts: where the positions of every line lie, and through which selections."""

from __future__ import annotations

import numpy as np

from tests.flow.building import IMAGE, Building, flags, line, stream
from upscale.channels import positions
from upscale.planning.layouts import Layouts, rooted


def joined() -> tuple[Building, Layouts]:
    """`cat(a, pick(b))`, where `pick` turns three channels round and pads them with a zero."""
    net = Building()
    net.layer("a", IMAGE, 2)
    net.layer("b", IMAGE, 3)
    net.pick("turned", "b", [2, 1, 0, -1])
    net.join("cat", "a", "turned")
    layouts = Layouts(net.flow())
    for _, select in net.flow().selects:
        layouts.look_through(select)
    return net, layouts


def test_a_line_of_which_nothing_was_said_lies_in_its_own_order() -> None:
    layouts = Layouts(stream(1).flow())
    assert not layouts.knows(line("stem"))
    assert layouts.of(line("stem")).tolist() == [0, 1, 2, 3]


def test_positions_have_the_places_of_the_layout_and_none_if_they_left() -> None:
    layouts = Layouts(stream(1).flow())
    layouts.put(line("stem"), positions([3, 0, 2]))
    assert layouts.place(line("stem"), positions([0, 2, 3, 1])).tolist() == [1, 2, 0, -1]


def test_wanted_positions_are_followed_through_selections_to_what_holds_them() -> None:
    _, layouts = joined()
    found = layouts.find(line("cat"), positions([1, 2, 4, 5]))
    lying = [
        (found.roots[root], position)
        for root, position in zip(found.root.tolist(), found.position.tolist(), strict=True)
    ]
    assert lying == [(line("a"), 1), (line("b"), 2), (line("b"), 0), (None, -1)]


def test_a_tensor_that_is_reached_in_two_ways_is_found_once() -> None:
    net = Building()
    net.layer("a", IMAGE, 2)
    net.join("cat", "a", "a")
    layouts = Layouts(net.flow())
    for _, select in net.flow().selects:
        layouts.look_through(select)
    found = layouts.find(line("cat"), positions([3, 0]))
    assert found.roots == (line("a"),)
    assert (found.root.tolist(), found.position.tolist()) == ([0, 0], [1, 0])


def test_what_selects_from_a_line_is_found_there_once_it_was_put() -> None:
    _, layouts = joined()
    assert layouts.find(line("cat"), positions([2])).roots == (line("b"),)
    layouts.put(line("turned"), np.arange(4))
    assert layouts.find(line("cat"), positions([2])).roots == (line("turned"),)


def test_a_line_that_was_put_is_not_looked_through() -> None:
    _, layouts = joined()
    layouts.put(line("cat"), np.arange(6))
    assert not layouts.is_select(line("cat"))
    assert layouts.find(line("cat"), positions([4])).roots == (line("cat"),)


def test_wanted_positions_are_arranged_as_they_lie_in_memory() -> None:
    _, layouts = joined()
    layouts.put(line("a"), positions([1, 0]))
    layouts.put(line("b"), positions([1, 2, 0]))
    # In `cat`: a0 a1 b2 b1 b0 zero. In memory: a1 a0, then b1 b2 b0.
    assert layouts.arrange(line("cat"), np.arange(5)).tolist() == [1, 0, 3, 2, 4]


def test_only_what_is_concatenated_joins() -> None:
    _, layouts = joined()
    assert layouts.joins(line("cat"))
    assert not layouts.joins(line("turned"))
    assert not layouts.joins(line("b"))


def test_live_positions_lie_in_the_order_of_their_classes() -> None:
    rank = positions([2, 0, 3, 1])
    laid = rooted(np.arange(4), flags(4, [0, 2, 3]), rank, nested=False)
    assert laid.tolist() == [3, 0, 2]


def test_without_ranks_live_positions_stay_in_their_own_order() -> None:
    assert rooted(np.arange(4), flags(4, [3, 1]), None, nested=False).tolist() == [1, 3]


def test_classes_that_occur_twice_lie_in_blocks_or_side_by_side() -> None:
    classes, rank, all_live = positions([0, 1, 0, 1]), positions([1, 0]), flags(4, range(4))
    assert rooted(classes, all_live, rank, nested=False).tolist() == [1, 0, 3, 2]
    assert rooted(classes, all_live, rank, nested=True).tolist() == [1, 3, 0, 2]
