"""Streams: what readers of one order keep, by hand."""

from __future__ import annotations

import numpy as np

from tests.selection.flows import fork
from upscale.lowering.lowered import Lowered
from upscale.planning import Way, make_plan
from upscale.selection.streams import keep_contiguous


def test_readers_keep_their_best_side_by_side_in_one_order() -> None:
    """`b` likes channels 0 and 2, `c` 2 and 3: apart in the model's order, together in another."""
    scores = {"b": np.array([9.0, 1, 8, 1]), "c": np.array([1.0, 1, 8, 9])}
    liked = {"b": np.array([1, 0, 1, 0], dtype=bool), "c": np.array([0, 0, 1, 1], dtype=bool)}
    kept, reads = keep_contiguous(fork(), liked, scores, slack=0.0)
    assert {w: np.flatnonzero(own).tolist() for w, own in kept.items()} == {
        "b": [0, 2],
        "c": [2, 3],
    }
    read = {f"@{weight}": np.flatnonzero(own) for weight, own in reads.items()}
    assert make_plan(Lowered(fork(), read), Way(widen=False)).copied_bytes == 0


def test_where_not_all_can_have_their_best_one_gives_way_and_nothing_is_copied() -> None:
    """Pairs of three channels: no order has 0 beside 1, 1 beside 2 and 2 beside 0."""
    flow = fork(b=2, c=2, d=2)
    scores = {
        "b": np.array([9.0, 9, 1, 0]),
        "c": np.array([1.0, 9, 9, 0]),
        "d": np.array([8.0, 1, 8, 0]),
    }
    liked = {weight: own > 5 for weight, own in scores.items()}
    apart = {f"@{weight}": np.flatnonzero(own) for weight, own in liked.items()}
    assert make_plan(Lowered(flow, apart), Way(widen=False)).copied_bytes > 0
    kept, _ = keep_contiguous(flow, liked, scores, slack=0.0)
    assert {weight: int(own.sum()) for weight, own in kept.items()} == {
        "b": 2,
        "c": 2,
        "d": 2,
    }
    side_by_side = {f"@{weight}": np.flatnonzero(own) for weight, own in kept.items()}
    assert make_plan(Lowered(flow, side_by_side), Way(widen=False)).copied_bytes == 0
