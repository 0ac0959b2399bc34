"""Races: what takes longer comes in later, and memory counts while it is held."""

from __future__ import annotations

import torch

from upscale.targets.racing import peak_bytes, race


def test_a_real_race_ranks_more_work_behind_less() -> None:
    x = torch.randn(400, 400)
    taken = race({"little": lambda: x @ x, "much": lambda: x @ x @ x @ x @ x @ x}, runs=9)
    assert taken["little"].median_ms < taken["much"].median_ms
    assert taken["much"].low_ms <= taken["much"].median_ms <= taken["much"].high_ms


def test_peak_memory_counts_what_is_held_at_once() -> None:
    x = torch.ones(1000)
    assert peak_bytes(lambda: x.add(1).add(1).add(1)) == 8000
    assert peak_bytes(lambda: x.view(10, 100)) == 0
    assert peak_bytes(lambda: torch.cat([x + 1, x + 2])) == 16000
