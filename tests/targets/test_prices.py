"""Prices: as JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

import upscale
from upscale.targets.prices import BUILT_IN, Prices


def test_prices_survive_as_json() -> None:
    assert Prices.from_json(json.loads(json.dumps(asdict(BUILT_IN)))) == BUILT_IN


@pytest.mark.parametrize("broken", [{}, {"outer": 1}, {**asdict(BUILT_IN), "mac": -1.0}])
def test_prices_that_are_none_are_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(upscale.TargetError):
        Prices.from_json(broken)
