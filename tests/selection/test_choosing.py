"""Choosing: who goes, by hand on a few units."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from tests.selection.flows import fork
from upscale.channels import Flags
from upscale.selection.choosing import Chooser, Limits
from upscale.selection.measuring import channels_masked
from upscale.selection.units import Units, find_units

FREE = Limits({}, frozenset(), {})


def chooser(scores: Mapping[str, list[float]], limits: Limits = FREE) -> Chooser:
    """Layers that share nothing, with scores for each of their channels."""
    count, of = 0, {}
    for weight, own in scores.items():
        of[weight] = np.arange(count, count + len(own))
        count += len(own)
    arrays = {weight: np.array(own) for weight, own in scores.items()}
    return Chooser(Units(of, count), arrays, limits, channels_masked)


def gone(kept: Mapping[str, Flags]) -> dict[str, list[int]]:
    return {weight: np.flatnonzero(~own).tolist() for weight, own in kept.items()}


SCORES = {"a": [4.0, 1, 2, 3], "b": [0.4, 0.1, 0.2, 0.3]}


def test_by_share_every_layer_loses_its_lowest() -> None:
    assert gone(chooser(SCORES).by_share(0.5)) == {"a": [1, 2], "b": [1, 2]}


def test_by_threshold_the_lowest_of_all_go_down_to_the_floor() -> None:
    assert gone(chooser(SCORES).by_threshold(0.375)) == {"a": [], "b": [1, 2, 3]}
    assert gone(chooser(SCORES).by_threshold(0.5)) == {"a": [1], "b": [1, 2, 3]}


def test_a_layer_that_is_held_or_has_its_own_share_does_not_compete() -> None:
    held = Limits({}, frozenset({"b"}), {})
    assert gone(chooser(SCORES, held).by_threshold(0.25)) == {"a": [1, 2], "b": []}
    shares = Limits({"b": 0.25}, frozenset(), {})
    assert gone(chooser(SCORES, shares).by_threshold(0.25)) == {"a": [1], "b": [1]}


def test_what_is_gone_already_goes_first() -> None:
    before = Limits({}, frozenset(), {"a": np.array([0])})
    assert gone(chooser(SCORES, before).by_share(0.25)) == {"a": [0], "b": [1]}


def test_errors_of_rounding_are_handed_on() -> None:
    """30% of 5 units is 1.5; a layer that reads two such lots loses 3 of its 10."""
    of = {"a": np.arange(5), "b": np.arange(5, 10), "both": np.arange(10)}
    scores = {weight: np.ones(len(own)) for weight, own in of.items()}
    kept = Chooser(Units(of, 10), scores, FREE, channels_masked).by_share(0.3)
    assert {weight: int((~own).sum()) for weight, own in kept.items()} == {
        "a": 2,
        "b": 1,
        "both": 3,
    }


@pytest.mark.parametrize("way", ["by_share_that_meets", "by_threshold"])
def test_no_choice_is_measured_twice(way: str) -> None:
    measured: list[bytes] = []

    def measure(kept: Mapping[str, Flags]) -> float:
        measured.append(np.concatenate(list(kept.values())).tobytes())
        return channels_masked(kept)

    rng = np.random.default_rng(0)
    of = {"a": np.arange(100), "b": np.arange(100, 300)}
    scores = {weight: rng.random(len(own)) for weight, own in of.items()}
    kept = getattr(Chooser(Units(of, 300), scores, FREE, measure), way)(0.3)
    assert channels_masked(kept) == pytest.approx(0.3, abs=0.005)
    assert len(measured) == len(set(measured)) <= 12


def test_columns_of_one_class_are_one_unit_of_a_segment_and_two_if_free() -> None:
    free = find_units(fork(), side="input")
    assert (free.count, set(free.of)) == (8, {"b", "c"})  # `a` reads the model's input
    tied = find_units(fork(), side="input", constraint="segment")
    assert tied.count == 4
    assert tied.of["b"].tolist() == tied.of["c"].tolist()


def test_what_the_model_returns_is_no_unit_of_the_output_side() -> None:
    assert set(find_units(fork(), side="output").of) == {"a"}
    assert find_units(fork(), side="output", single_branch=True).count == 0
