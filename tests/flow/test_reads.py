"""Reads: which positions of which line each step wants, and which want them in their own order."""

from __future__ import annotations

from tests.flow.building import IMAGE, Building, kept, line, residual, stream
from upscale.flow.liveness import Want, wants_of


def wants(net: Building, columns: dict[str, list[int]]) -> dict[tuple[str, str], Want]:
    """Every want, by the node that reads and the value read."""
    every = wants_of(net.flow(), net.liveness(columns), kept(columns))
    return {(want.node, want.line.value): want for want in every if want.line.value != IMAGE}


def test_each_layer_wants_the_columns_it_keeps() -> None:
    found = wants(stream(2), {"a": [0, 2], "b": [2, 3]})
    assert found["a", "stem"].positions.tolist() == [0, 2]
    assert found["b", "stem"].positions.tolist() == [2, 3]
    assert not found["a", "stem"].pinned


def test_a_sum_wants_of_both_operands_what_its_reader_keeps() -> None:
    found = wants(residual(), {"inner": [0, 2], "head": [1, 2]})
    assert found["sum", "stem"].positions.tolist() == [1, 2]
    assert found["sum", "inner"].positions.tolist() == [1, 2]
    assert found["inner", "stem"].positions.tolist() == [0, 2]


def test_what_is_returned_is_wanted_whole_and_in_its_own_order() -> None:
    returned = wants(stream(1), {"a": [0]})["output", "a"]
    assert returned.positions.tolist() == [0, 1]
    assert returned.pinned


def test_a_grouped_layer_pins_the_order_of_what_it_reads_and_a_depthwise_one_does_not() -> None:
    net = Building()
    net.layer("stem", IMAGE, 4)
    net.layer("grouped", "stem", 4, groups=2)
    net.depthwise("depthwise", "grouped")
    net.layer("head", "depthwise", 2)
    net.returns("head")
    found = wants(net, {"head": [0]})
    assert found["grouped", "stem"].pinned
    assert found["grouped", "stem"].positions.tolist() == [0, 1]
    assert not found["depthwise", "grouped"].pinned
    assert found["depthwise", "grouped"].positions.tolist() == [0]


def test_a_concatenation_is_looked_through_and_not_executed() -> None:
    net = Building()
    net.layer("a", IMAGE, 2)
    net.layer("b", IMAGE, 2)
    net.join("cat", "a", "b")
    net.layer("head", "cat", 1)
    net.returns("head")
    found = wants(net, {"head": [1, 2]})
    assert found["head", "cat"].executed
    assert not found["cat", "a"].executed
    assert found["cat", "a"].positions.tolist() == [1]
    assert found["cat", "b"].positions.tolist() == [0]


def test_steps_that_do_not_run_want_nothing() -> None:
    net = stream(1)
    net.layer("idle", "stem", 2)
    assert ("idle", "stem") not in wants(net, {"a": [0]})
    assert line("idle") in net.flow().classes
