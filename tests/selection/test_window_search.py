"""Windows: side by side in one order, as good as brute force finds, no worse than one set."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from upscale.ordering import solve
from upscale.selection.window_search import find_windows


def worth(scores: np.ndarray, keep: np.ndarray, windows: list[np.ndarray]) -> float:
    """What readers keep within windows, each as a share of what it would keep alone."""
    total = 0.0
    for row, k, window in zip(scores, keep.tolist(), windows, strict=True):
        best = sum(sorted(row.tolist(), reverse=True)[:k])
        total += sum(sorted(row[window].tolist(), reverse=True)[:k]) / best
    return total


def brute(scores: np.ndarray, keep: np.ndarray, slack: float) -> float:
    """The most that any order and any windows give."""
    channels = scores.shape[1]
    most = 0.0
    for order in itertools.permutations(range(channels)):
        total = 0.0
        for row, k in zip(scores, keep.tolist(), strict=True):
            width = min(channels, k + math.ceil(slack * k))
            best = sum(sorted(row.tolist(), reverse=True)[:k])
            total += (
                max(
                    sum(sorted((row[c] for c in order[s : s + width]), reverse=True)[:k])
                    for s in range(channels - width + 1)
                )
                / best
            )
        most = max(most, total)
    return most


@st.composite
def streams(draw: st.DrawFn, most: int = 30) -> tuple[np.ndarray, np.ndarray, float]:
    channels, readers = draw(st.integers(2, most)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    keep = rng.integers(1, channels + 1, size=readers)
    return rng.random((readers, channels)) + 1e-3, keep, draw(st.sampled_from([0.0, 0.1, 0.5]))


@settings(max_examples=40, deadline=None)
@given(streams(most=16))
def test_windows_are_as_wide_as_asked_and_contiguous_in_one_order(
    drawn: tuple[np.ndarray, np.ndarray, float],
) -> None:
    scores, keep, slack = drawn
    windows = find_windows(scores, keep, slack)
    for window, k in zip(windows, keep.tolist(), strict=True):
        assert len(set(window.tolist())) == min(scores.shape[1], k + math.ceil(slack * k))
    assert solve([set(window.tolist()) for window in windows]).cost == 0


@settings(max_examples=15, deadline=None)
@given(streams(most=6))
def test_small_streams_come_close_to_brute_force(
    drawn: tuple[np.ndarray, np.ndarray, float],
) -> None:
    scores, keep, slack = drawn
    found = worth(scores, keep, find_windows(scores, keep, slack))
    assert found >= 0.97 * brute(scores, keep, slack)


@settings(max_examples=20, deadline=None)
@given(streams())
def test_windows_lose_no_more_than_one_set_for_all(
    drawn: tuple[np.ndarray, np.ndarray, float],
) -> None:
    scores, keep, slack = drawn
    keep = np.full_like(keep, int(keep.max()))
    best = np.argsort(-scores.sum(axis=0))[: keep[0]]
    same = worth(scores, keep, [best] * len(keep))
    assert worth(scores, keep, find_windows(scores, keep, slack)) >= same * 0.99


@pytest.mark.parametrize("slack", [0.0, 0.2])
def test_a_given_order_is_kept(slack: float) -> None:
    scores = np.random.default_rng(0).random((3, 12))
    for window in find_windows(scores, np.array([5, 7, 12]), slack, order=np.arange(12)):
        assert (np.diff(window) == 1).all()


def test_readers_that_agree_lose_nothing() -> None:
    scores = np.tile(np.random.default_rng(0).random(40), (5, 1))
    keep = np.array([10, 20, 25, 30, 39])
    assert worth(scores, keep, find_windows(scores, keep, 0.0)) == pytest.approx(5)
