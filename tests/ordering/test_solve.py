import pytest

from upscale.errors import OrderingError
from upscale.ordering import Ordering, check, solve


def test_no_sets_have_no_order() -> None:
    assert solve([]) == Ordering((), (), (), cost=0.0, lower_bound=0.0)
    assert solve([], method="mrap") == Ordering((), (), (), cost=0.0, lower_bound=0.0)


@pytest.mark.parametrize("method", ["optimal", "mrap"])
def test_empty_and_single_channel_sets_are_contiguous(method: str) -> None:
    ordering = solve([set(), {3}, {1, 3}, []], method=method)
    assert ordering.contiguous == (True, True, True, True)
    assert ordering.runs == (0, 1, 1, 0)
    assert sorted(ordering.order) == [1, 3]


def test_one_set_keeps_its_natural_order() -> None:
    assert solve([[9, 2, 5]]).order == (2, 5, 9)


def test_nested_and_disjoint_sets_keep_low_channels_first() -> None:
    assert solve([{0, 1, 2, 3}, {2, 3}]).order == (0, 1, 2, 3)
    assert solve([{4, 5}, {0, 1}]).order == (0, 1, 4, 5)


def test_the_lower_end_comes_first() -> None:
    assert solve([{5, 3}, {3, 1}]).order == (1, 3, 5)


def test_channel_numbers_may_be_large_or_negative() -> None:
    assert solve([{-5, 10**12}, {10**12, 7}]).order == (-5, 10**12, 7)


@pytest.mark.parametrize(
    ("sets", "arguments", "complaint"),
    [
        ([{0, 1}], {"weights": [-1.0]}, "weight 0 is -1.0"),
        ([{0, 1}], {"weights": [float("nan")]}, "weight 0 is nan"),
        ([{0, 1}], {"weights": [float("inf")]}, "weight 0 is inf"),
        ([{0, 1}], {"weights": [1.0, 2.0]}, "1 sets but 2 weights"),
        ([{0, 1}], {"weights": ["heavy"]}, "weight 0 is 'heavy'"),
        ([{0, 1}], {"method": "magic"}, "unknown method 'magic'"),
        ([{0, 1}], {"time_limit": -1.0}, "time_limit is -1.0"),
        ([{0.5, 1}], {}, "set 0 holds"),
        ([{0}, {"a"}], {}, "set 1 holds"),
        ([{0}, 3], {}, "set 1 holds"),
    ],
)
def test_bad_input_is_refused_with_a_reason(
    sets: list[set[int]], arguments: dict[str, object], complaint: str
) -> None:
    with pytest.raises(OrderingError, match=complaint):
        solve(sets, **arguments)  # type: ignore[arg-type]


SETS = [{0, 1}, {1, 2}, {0, 2}]
RIGHT = Ordering((0, 1, 2), (True, True, False), (1, 1, 2), cost=1.0, lower_bound=1.0)


def test_check_accepts_a_right_answer() -> None:
    check(SETS, None, RIGHT)
    check(SETS, [2.0, 3.0, 1.0], RIGHT)


@pytest.mark.parametrize(
    ("tampered", "complaint"),
    [
        ({"order": (0, 1, 1)}, "twice"),
        ({"order": (0, 1)}, r"lacks channels \[2\]"),
        ({"order": (0, 1, 2, 3)}, r"has \[3\]"),
        ({"order": (0, 2, 1)}, "set 0 lies in 2 runs, not 1"),
        ({"contiguous": (True, True, True)}, "flag"),
        ({"contiguous": (True, True)}, "contiguous has 2 entries"),
        ({"runs": (1, 1, 1)}, "set 2 lies in 2 runs, not 1"),
        ({"runs": (1, 1)}, "runs has 2 entries"),
        ({"cost": 0.0, "lower_bound": 0.0}, "costs 1.0, not 0.0"),
        ({"lower_bound": 2.0}, "lower bound 2.0"),
        ({"lower_bound": -1.0}, "lower bound -1.0"),
    ],
)
def test_check_catches_a_tampered_answer(tampered: dict[str, object], complaint: str) -> None:
    fields = {name: getattr(RIGHT, name) for name in RIGHT.__dataclass_fields__}
    with pytest.raises(OrderingError, match=complaint):
        check(SETS, None, Ordering(**{**fields, **tampered}))


def test_check_refuses_weights_of_another_family() -> None:
    with pytest.raises(OrderingError, match="3 sets but 1 weights"):
        check(SETS, [1.0], RIGHT)
