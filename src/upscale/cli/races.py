"""Races, as the command line tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from upscale.targets.racing import Measurement

# One race: the unpruned model and the pruned one.
Race = Mapping[str, Measurement]


def ratio_of(race: Race) -> float:
    """How many times as long as the unpruned model the pruned one takes."""
    return race["pruned"].median_ms / race["unpruned"].median_ms


def plain(race: Race) -> dict[str, Any]:
    """A race as plain data."""
    return {name: asdict(own) for name, own in race.items()}


def as_table(races: Mapping[str, Race]) -> list[str]:
    """Races on several runtimes as a table: medians in milliseconds, and half of the runs."""
    lines = [f"{'runtime':12} {'unpruned ms':>12} {'pruned ms':>12} {'ratio':>6}  half of the runs"]
    for name, race in races.items():
        before, after = race["unpruned"], race["pruned"]
        spread = f"{after.low_ms:.2f} to {after.high_ms:.2f}"
        figures = f"{before.median_ms:12.2f} {after.median_ms:12.2f} {ratio_of(race):6.2f}"
        lines.append(f"{name:12} {figures}  {spread}")
    first = next(iter(races.values()))["unpruned"]
    return [*lines, f"{first.runs} runs each, on {first.threads} threads; {first.versions}"]
