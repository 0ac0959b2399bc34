"""Selections as values: edited, combined, compared, written and read."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import upscale
from upscale import Selection

LISTS = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4), st.sets(st.integers(0, 20), max_size=6), max_size=4
)
SIDES = st.sampled_from(["input", "output"])


@given(LISTS, SIDES, st.sampled_from(["norm", "layer"]), st.integers(0, 3))
def test_a_selection_comes_back_from_json(
    kept: dict[str, set[int]], side: str, after: str, extra: int
) -> None:
    windows = {name: own | set(range(extra)) for name, own in kept.items()}
    selection = Selection(kept=kept, side=side, after=after, windows=windows)
    assert Selection.from_json(selection.to_json()) == selection
    assert copy.deepcopy(selection) == selection == pickle.loads(pickle.dumps(selection))


@given(LISTS, LISTS)
def test_and_keeps_what_both_keep_and_or_what_either_does(
    one: dict[str, set[int]], other: dict[str, set[int]]
) -> None:
    a, b = Selection(kept=one), Selection(kept=other)

    def keeps(selection: Selection, name: str, channel: int) -> bool:
        return name not in selection.kept or channel in selection.kept[name]

    for name in one.keys() | other.keys():
        for channel in range(21):
            both = keeps(a, name, channel), keeps(b, name, channel)
            assert keeps(a & b, name, channel) == all(both)
            assert keeps(a | b, name, channel) == any(both)


def test_editing_leaves_the_original_alone() -> None:
    first = Selection(kept={"a": [0, 1], "b": [2]})
    assert dict(first.with_kept({"b": [0]}).kept) == {"a": (0, 1), "b": (0,)}
    assert dict(first.without("a").kept) == {"b": (2,)}
    assert first.differences(Selection(kept={"a": [1, 3]})) == {"a": (0, 3)}
    assert dict(first.kept) == {"a": (0, 1), "b": (2,)}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kept": {"a": [0.5]}}', '{"kept": {}, "code": 1}', '{"kept": 3}']
)
def test_json_that_is_no_selection_is_refused(text: str) -> None:
    with pytest.raises(upscale.SelectionError):
        Selection.from_json(text)


def test_a_window_holds_what_is_kept() -> None:
    with pytest.raises(upscale.SelectionError, match="a: the window must hold"):
        Selection(kept={"a": [0, 1]}, windows={"a": [1, 2]})


def test_sides_do_not_mix() -> None:
    with pytest.raises(upscale.SelectionError, match="different sides"):
        Selection(kept={}) & Selection(kept={}, side="output")


def test_a_selection_prints_as_a_table_with_what_it_reached() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    selection = upscale.select(model, torch.zeros(1, 4), amount=0.25)
    assert str(selection).splitlines() == [
        "selection: input channels of 1 layers",
        "asked 25.00% of channels, reached 25.00%; pruned: 25.00% of channels, "
        "8.33% of parameters, 8.33% of macs",
        "1  keeps 6 of 8",
    ]
