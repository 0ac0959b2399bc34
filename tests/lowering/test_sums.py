"""Sums of tensors that lack different channels: what is added, and what is read beside it."""

from __future__ import annotations

import pytest

from tests.flow.building import Building, line, residual
from tests.lowering.building import split_sums
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.liveness import find_live

Sources = list[tuple[str, int] | None]


def split(stem: list[int], inner: list[int], way: str = "split") -> ChannelFlow:
    """`inner + stem` where each is zero at the positions given, of four."""
    return split_sums(residual(), {"stem": stem, "inner": inner}, way)


def sources(flow: ChannelFlow, value: str) -> Sources:
    """Where each position of a selection is taken from; `None` for a zero."""
    (select,) = (relation for _, relation in flow.selects if relation.out == line(value))
    pairs = zip(select.operand.tolist(), select.position.tolist(), strict=True)
    assert (select.position[select.operand < 0] == -1).all()
    return [None if operand < 0 else (select.reads[operand].value, at) for operand, at in pairs]


def added(flow: ChannelFlow) -> tuple[str, list[Sources]]:
    """What the one addition makes, and where its operands are taken from."""
    ((_, relation),) = flow.passes
    return relation.out.value, [sources(flow, part.value) for part in relation.reads]


def test_only_what_both_operands_have_is_added_and_the_rest_is_read_where_it_lies() -> None:
    flow = split(stem=[0], inner=[3])
    made, operands = added(flow)
    assert operands == [[("inner", 1), ("inner", 2)], [("stem", 1), ("stem", 2)]]
    assert sources(flow, "sum") == [("inner", 0), (made, 0), (made, 1), ("stem", 3)]


def test_what_no_operand_has_is_zero() -> None:
    assert sources(split(stem=[0, 1], inner=[1, 3]), "sum")[1] is None


def test_operands_that_share_no_channel_are_not_added() -> None:
    flow = split(stem=[0, 1], inner=[2, 3])
    assert flow.passes == ()
    assert sources(flow, "sum") == [("inner", 0), ("inner", 1), ("stem", 2), ("stem", 3)]


def test_where_one_operand_has_all_that_the_other_has_zeros_are_filled_in() -> None:
    made, (inner, stem) = added(split(stem=[], inner=[1, 2]))
    assert made == "sum"
    assert inner == [("inner", 0), None, None, ("inner", 3)]
    assert stem == [("stem", position) for position in range(4)]


def test_infilled_both_operands_are_as_wide_as_the_sum() -> None:
    made, operands = added(split(stem=[0], inner=[3], way="infill"))
    assert made == "sum"
    assert [operand.index(None) for operand in operands] == [3, 0]
    assert [len(operand) for operand in operands] == [4, 4]


@pytest.mark.parametrize("way", ["split", "infill"])
def test_a_sum_of_operands_that_lack_the_same_stays_as_it_was(way: str) -> None:
    flow = split(stem=[1, 2], inner=[1, 2], way=way)
    assert [step.node for step in flow.steps] == [step.node for step in residual().flow().steps]


def test_whole_sums_are_left_alone_and_so_is_what_is_no_sum() -> None:
    assert split(stem=[0], inner=[3], way="whole").selects == ()
    assert split_sums(residual(), {"stem": [0]}, adds=None).selects == ()


def test_an_operand_is_needed_where_it_is_read_and_no_more() -> None:
    live = find_live(split(stem=[0], inner=[3]), {}).lines
    assert live[line("inner")].tolist() == [True, True, True, False]


def test_a_sum_of_three_is_left_alone() -> None:
    net = Building()
    for name in ("a", "b", "c"):
        net.layer(name, "image", 4)
    net.elementwise("sum", "a", "b", "c")
    net.returns("sum")
    assert split_sums(net, {"a": [0]}).selects == ()
