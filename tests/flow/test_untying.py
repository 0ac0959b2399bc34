"""Untying: behind a read that is copied anyway, channels have an order of their own."""

from __future__ import annotations

from tests.flow.building import IMAGE, Building, line, residual
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.untying import copied, untied, written_anew


def joined_sum() -> Building:
    """`cat(a, b) + c`, read by a head."""
    net = Building()
    net.layer("a", IMAGE, 2)
    net.layer("b", IMAGE, 2)
    net.join("cat", "a", "b")
    net.layer("c", IMAGE, 4)
    net.elementwise("sum", "cat", "c")
    net.layer("head", "sum", 2)
    net.returns("head")
    return net


def together(flow: ChannelFlow, one: str, other: str) -> bool:
    """Whether two values' channels are of the same classes, one by one."""
    return flow.classes[line(one)].tolist() == flow.classes[line(other)].tolist()


def test_a_sum_reads_a_concatenation_that_is_written_anew() -> None:
    assert written_anew(joined_sum().flow()) == {("sum", line("cat"))}
    assert written_anew(residual().flow()) == frozenset()


def test_a_part_of_a_tensor_is_read_where_it_lies_and_not_written_anew() -> None:
    net = Building()
    net.layer("a", IMAGE, 4)
    net.layer("b", IMAGE, 2)
    net.pick("half", "a", [2, 3])
    net.elementwise("sum", "half", "b")
    net.returns("sum")
    assert written_anew(net.flow()) == frozenset()


def test_of_edges_that_copy_those_at_sums_can_be_cut() -> None:
    edges = frozenset({("sum", "stem"), ("inner", "stem")})
    assert copied(residual().flow(), edges) == {("sum", line("stem"))}


def test_without_cuts_the_classes_are_as_they_were() -> None:
    for net in (residual(), joined_sum()):
        flow = net.flow()
        again = untied(flow, frozenset())
        for one in flow.classes:
            for other in flow.classes:
                same = flow.classes[one].tolist() == flow.classes[other].tolist()
                assert together(again, one.value, other.value) == same, (one, other)


def test_behind_a_cut_the_sum_goes_with_its_other_operand() -> None:
    flow = residual().flow()
    assert together(flow, "stem", "sum")
    cut = untied(flow, frozenset({("sum", line("stem"))}))
    assert together(cut, "inner", "sum")
    assert not set(cut.classes[line("stem")]) & set(cut.classes[line("sum")])


def test_before_a_cut_the_parts_of_a_concatenation_are_free_of_each_other() -> None:
    flow = joined_sum().flow()
    cut = untied(flow, written_anew(flow))
    assert together(cut, "sum", "c")
    classes = [set(cut.classes[line(value)]) for value in ("a", "b", "c")]
    assert sum(map(len, classes)) == len(set.union(*classes)) == 8


def test_a_depthwise_layer_and_a_fold_stay_tied_behind_no_cut() -> None:
    net = Building()
    net.layer("stem", IMAGE, 4)
    net.depthwise("depthwise", "stem")
    net.halves("glu", "depthwise")
    net.layer("head", "glu", 1)
    net.returns("head")
    again = untied(net.flow(), frozenset())
    assert together(again, "stem", "depthwise")
    stem, folded = again.classes[line("stem")].tolist(), again.classes[line("glu")].tolist()
    assert stem == [*folded, *folded]
