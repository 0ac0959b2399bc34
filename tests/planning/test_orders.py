"""Orders: what a stream's readers want lies side by side where some order allows it."""

from __future__ import annotations

import pytest

from tests.flow.building import IMAGE, Building, kept, line, residual, stream
from upscale.channels import positions
from upscale.flow.liveness import wants_of
from upscale.planning.layouts import is_slice
from upscale.planning.orders import Orders, Solved, find_streams, fixed_streams, order_classes

Columns = dict[str, list[int]]
CHANNEL_BYTES = 64  # sixteen pixels of four bytes


def ordered(net: Building, columns: Columns, order: str = "optimal") -> Orders:
    flow, live = net.flow(), net.liveness(columns)
    return order_classes(flow, live, wants_of(flow, live, kept(columns)), order)


def places(net: Building, orders: Orders, value: str, channels: list[int]) -> list[int]:
    """Where the order puts channels of a value; -1 where it is not free."""
    classes = net.flow().classes[line(value)]
    return sorted(orders.places.place[classes[positions(channels)]].tolist())


@pytest.mark.parametrize("order", ["mrap", "optimal"])
def test_two_readers_of_a_stream_both_get_slices(order: str) -> None:
    net, columns = stream(2), {"a": [0, 2], "b": [2, 3]}
    orders = ordered(net, columns, order)
    for read in columns.values():
        assert is_slice(positions(places(net, orders, "stem", read)))
    assert orders.cost == 0


def test_a_family_that_was_solved_is_not_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    net, columns = stream(2), {"a": [0, 2], "b": [2, 3]}
    solved: Solved = {}
    flow, live = net.flow(), net.liveness(columns)
    wants = wants_of(flow, live, kept(columns))
    first = order_classes(flow, live, wants, "optimal", solved=solved)
    monkeypatch.delattr("upscale.planning.orders.solve")
    again = order_classes(flow, live, wants, "optimal", solved=solved)
    assert again.places.place.tolist() == first.places.place.tolist()


def test_without_an_order_nothing_has_a_place() -> None:
    net, columns = stream(2), {"a": [0, 2], "b": [2, 3]}
    assert places(net, ordered(net, columns, "none"), "stem", [0, 2, 3]) == [-1, -1, -1]


def test_three_sets_that_no_order_serves_leave_the_bytes_of_one_apart() -> None:
    net = stream(3, channels=3)
    orders = ordered(net, {"a": [0, 1], "b": [1, 2], "c": [0, 2]})
    assert orders.cost == orders.lower_bound == 2 * CHANNEL_BYTES


def test_a_tensor_that_is_read_whole_weighs_nothing_in_whatever_order_it_is() -> None:
    net = Building()
    net.layer("stem", IMAGE, 3)
    columns: Columns = {"head": [0, 2]}
    for name, read in (("a", [0, 1]), ("b", [0, 1]), ("c", [1, 2]), ("d", [1, 2])):
        net.layer(name, "stem", 2)
        columns[name] = read
    net.layer("inner", "stem", 3)
    net.elementwise("sum", "inner", "stem")
    net.layer("head", "sum", 2)
    net.returns("a", "b", "c", "d", "head")
    # The sum copies channels 0 and 2 of the stem. It reads all there is of `inner`.
    assert ordered(net, columns).cost == 2 * CHANNEL_BYTES


def test_a_run_more_in_a_concatenation_weighs_next_to_nothing() -> None:
    net = Building()
    net.layer("stem", IMAGE, 3)
    net.layer("beside", IMAGE, 2)
    net.join("cat", "stem", "beside")
    for name, read in (("a", "stem"), ("b", "stem"), ("head", "cat")):
        net.layer(name, read, 2)
    net.returns("a", "b", "head")
    orders = ordered(net, {"a": [0, 1], "b": [1, 2], "head": [0, 2, 3]})
    assert 0 < orders.cost < 1


def test_a_stream_that_the_caller_gets_keeps_its_own_order() -> None:
    net = stream(2)
    net.returns("stem")
    orders = ordered(net, {"a": [0, 2], "b": [2, 3]})
    assert places(net, orders, "stem", [0, 1, 2, 3]) == [-1, -1, -1, -1]


def test_a_grouped_layer_fixes_what_it_reads_and_what_it_makes() -> None:
    net = Building()
    net.layer("stem", IMAGE, 4)
    net.layer("grouped", "stem", 4, groups=2)
    net.layer("head", "grouped", 3)
    net.layer("last", "head", 2)
    net.returns("last")
    flow, live = net.flow(), net.liveness({})
    streams = find_streams(flow, live)
    fixed = fixed_streams(flow, streams, wants_of(flow, live, {}))
    for value in ("stem", "grouped", "last"):
        assert set(streams[flow.classes[line(value)]]) <= fixed, value
    assert not set(streams[flow.classes[line("head")]]) & fixed


def test_what_a_sum_ties_is_one_stream_and_what_a_concatenation_joins_is_not() -> None:
    flow, live = residual().flow(), residual().liveness({})
    streams = find_streams(flow, live)
    assert len({*streams[flow.classes[line("stem")]], *streams[flow.classes[line("inner")]]}) == 1
    net = Building()
    net.layer("a", IMAGE, 2)
    net.layer("b", IMAGE, 2)
    net.join("cat", "a", "b")
    net.layer("head", "cat", 2)
    net.returns("head")
    streams = find_streams(net.flow(), net.liveness({}))
    assert len(set(streams[net.flow().classes[line("cat")]].tolist())) == 2


def test_features_want_the_order_of_their_channels() -> None:
    net = Building(pixels=2)
    net.layer("stem", IMAGE, 4)
    net.flatten("features", "stem")
    net.layer("head", "features", 2)
    net.layer("beside", "stem", 2)
    net.returns("head", "beside")
    orders = ordered(net, {"head": [0, 1, 6, 7], "beside": [0, 1]})
    for channels in ([0, 3], [0, 1]):
        assert is_slice(positions(places(net, orders, "stem", channels)))
