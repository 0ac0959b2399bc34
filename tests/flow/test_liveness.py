"""Live sets of flows of a few nodes: a producer makes what its readers keep, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.flow.building import IMAGE, Building, kept, line, live_of, residual, stream
from upscale.channels import Places
from upscale.flow.liveness import find_live


def test_in_a_chain_a_layer_makes_what_the_next_keeps() -> None:
    net = Building()
    net.layer("a", IMAGE, 4)
    net.elementwise("relu", "a")
    net.layer("b", "relu", 3)
    net.layer("c", "b", 2)
    net.returns("c")
    live = net.live({"b": [0, 3], "c": [1]})
    assert live == {"a": [0, 3], "relu": [0, 3], "b": [1], "c": [0, 1]}


def test_what_the_caller_gets_and_what_no_selection_names_stays_whole() -> None:
    assert stream(1).live({}) == {"stem": [0, 1, 2, 3], "a": [0, 1]}


def test_in_a_fork_a_layer_makes_what_either_reader_keeps() -> None:
    assert stream(2).live({"a": [0, 2], "b": [2, 3]})["stem"] == [0, 2, 3]


def test_a_residual_sum_needs_the_same_channels_of_both_operands() -> None:
    live = residual().live({"inner": [0, 2], "head": [1, 2]})
    assert live == {"stem": [0, 1, 2], "inner": [1, 2], "sum": [1, 2], "head": [0, 1]}


def test_a_layer_that_nobody_reads_makes_nothing_and_does_not_run() -> None:
    net = stream(2)
    net.layer("idle", "a", 5)
    live = net.liveness({"a": [0], "b": [1]})
    assert live_of(live)["idle"] == []
    assert "idle" not in live.steps
    assert {"stem", "a", "b", "output"} <= live.steps


def test_where_a_reader_keeps_nothing_one_channel_stands_witness() -> None:
    assert stream(1).live({"a": []})["stem"] == [0]


def grouped() -> Building:
    """Six channels read in three groups of two, each of which makes two of six."""
    net = Building()
    net.layer("stem", IMAGE, 6)
    net.layer("grouped", "stem", 6, groups=3)
    net.layer("head", "grouped", 2)
    net.returns("head")
    return net


def test_a_grouped_layer_makes_whole_groups_and_reads_for_those_alone() -> None:
    live = grouped().live({"head": [0, 5]})
    assert live["grouped"] == [0, 1, 4, 5]
    assert live["stem"] == [0, 1, 4, 5]


def test_a_column_that_a_grouped_layer_drops_goes_from_every_group() -> None:
    assert grouped().live({"grouped": [1], "head": [0, 5]})["stem"] == [1, 5]


def test_a_depthwise_layer_hands_its_readers_wishes_on_channel_by_channel() -> None:
    net = Building()
    net.layer("stem", IMAGE, 4)
    net.depthwise("depthwise", "stem")
    net.layer("head", "depthwise", 2)
    net.returns("head")
    live = net.live({"head": [1, 3]})
    assert live["depthwise"] == live["stem"] == [1, 3]


def test_a_fold_needs_both_parts_of_what_is_needed() -> None:
    net = Building()
    net.layer("stem", IMAGE, 6)
    net.halves("glu", "stem")
    net.layer("head", "glu", 2)
    net.returns("head")
    assert net.live({"head": [0, 2]})["stem"] == [0, 2, 3, 5]


def test_a_carried_channel_is_needed_if_one_of_its_features_is() -> None:
    net = Building(pixels=3)
    net.layer("stem", IMAGE, 4)
    net.flatten("features", "stem")
    net.layer("head", "features", 2)
    net.returns("head")
    live = net.live({"head": [1, 9, 11]})
    assert live["features"] == [1, 9, 11]
    assert live["stem"] == [0, 3]


def test_a_select_needs_what_the_needed_positions_are_taken_from() -> None:
    net = Building()
    net.layer("a", IMAGE, 3)
    net.layer("b", IMAGE, 3)
    net.join("cat", "a", "b")
    net.layer("head", "cat", 2)
    net.returns("head")
    live = net.live({"head": [1, 3, 5]})
    assert (live["a"], live["b"]) == ([1], [0, 2])


def test_of_a_concatenation_an_operand_that_nobody_wants_does_not_run() -> None:
    net = Building()
    net.layer("a", IMAGE, 3)
    net.layer("b", IMAGE, 3)
    net.join("cat", "a", "b")
    net.layer("head", "cat", 2)
    net.returns("head")
    assert "b" not in net.liveness({"head": [0, 1]}).steps


def test_zeros_of_a_select_need_nothing() -> None:
    net = Building()
    net.layer("stem", IMAGE, 4)
    net.pick("padded", "stem", [-1, 0, 1, 2, 3, -1])
    net.layer("head", "padded", 2)
    net.returns("head")
    assert net.live({"head": [0, 2, 5]})["stem"] == [1]


def test_what_mixes_channels_needs_all_of_them() -> None:
    net = Building()
    net.layer("stem", IMAGE, 4)
    net.elementwise("norm", "stem", whole=True)
    net.layer("head", "norm", 2)
    net.returns("head")
    assert net.live({"head": [2]})["stem"] == [0, 1, 2, 3]


def test_blocks_keep_equally_many_channels_each() -> None:
    net = stream(1, channels=6)
    live = find_live(net.in_blocks("stem", 2), kept({"a": [0, 2, 4]}))
    assert live_of(live)["stem"] == [0, 2, 3, 4]


def test_layers_that_share_a_weight_make_the_same_channels() -> None:
    net = Building()
    net.layer("stem", IMAGE, 4)
    net.layer("one", "stem", 4)
    net.layer("other", "one", 4, shares="one")
    net.layer("head", "other", 2)
    net.returns("head")
    assert set(net.flow().tied) == {(line("one"), line("other"))}  # by weight and bias
    live = net.live({"one": [0, 1], "head": [3]})
    assert live["one"] == live["other"] == [0, 1, 3]


def placed(net: Building, order: list[int]) -> Places:
    """The channels of the stem in an order, as one stream."""
    flow = net.flow()
    places = Places.none(flow.class_count)
    places.stream[flow.classes[line("stem")]] = 0
    places.place[flow.classes[line("stem")]] = np.argsort(order)
    return places


@pytest.mark.parametrize(
    ("order", "needed"),
    [([0, 1, 2, 3], [0, 1, 2]), ([0, 2, 1, 3], [0, 2]), ([1, 2, 3, 0], [0, 2, 3])],
)
def test_in_an_order_what_lies_between_needed_channels_is_needed_too(
    order: list[int], needed: list[int]
) -> None:
    net = stream(1)
    live = find_live(net.flow(), kept({"a": [0, 2]}), placed(net, order))
    assert live_of(live)["stem"] == needed


def test_a_stream_in_whole_blocks_gains_the_next_channels_of_its_order() -> None:
    net = stream(1)
    places = placed(net, [3, 1, 2, 0])
    live = find_live(net.flow(), kept({"a": [3, 1, 2]}), places, whole={0: 2})
    assert live_of(live)["stem"] == [0, 1, 2, 3]
    live = find_live(net.flow(), kept({"a": [3]}), places, whole={0: 2})
    assert live_of(live)["stem"] == [1, 3]
    live = find_live(net.flow(), kept({"a": [0]}), places, whole={0: 2})
    assert live_of(live)["stem"] == [0, 2], "nothing lies behind: the nearest in front"
