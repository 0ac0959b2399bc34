"""Calibration: prices measured on this machine, kept, and used by plans from then on."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from upscale.capture import Example
from upscale.errors import TargetError
from upscale.targets.prices import Prices
from upscale.targets.pricing import Pricing
from upscale.targets.racing import computing_on
from upscale.targets.runtime import Runtime, runtime_of, target_like
from upscale.targets.target import Target


def calibrate(target: Target, *, save: bool = True) -> Prices:
    """Measure what operations cost where a target's runtime runs; a matter of seconds.

    The result is kept in the user's cache directory, and plans use it from then on.
    """
    if target.device != "cpu":
        raise TargetError(f"nothing is known of the device {target.device!r}; only cpu is")
    runtime = runtime_of(target)
    runtime.check_installed()
    with computing_on(target.threads):
        prices = runtime.measure(target)
    if save:
        _write(_key(target, runtime), prices)
    return prices


def pricing_for(example: Example, target: Target | None) -> Pricing:
    """What to reckon with on a target; on one like the example, if none is given."""
    like = target_like(example)
    target = target or like
    return runtime_of(target).pricing(target, prices_of(target), target.batch / like.batch)


def prices_of(target: Target) -> Prices:
    """The prices measured for a target on this machine, or its runtime's built-in ones."""
    runtime = runtime_of(target)
    try:
        return Prices.from_json(_kept()[_key(target, runtime)])
    except (ValueError, KeyError, TypeError, ImportError):
        return runtime.built_in


def _kept() -> dict[str, Any]:
    """All calibrations that are kept, whatever they hold."""
    try:
        kept = json.loads(cache_path().read_text())
    except (OSError, ValueError):
        kept = None
    return kept if isinstance(kept, dict) else {}


def cache_path() -> Path:
    """The file in which calibrations are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "upscale" / "costs.json"


def _key(target: Target, runtime: Runtime) -> str:
    """What prices depend on: machine, version, and the target but for its batch and format."""
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {platform.node()}"
    where = f"{target.runtime} {target.device} {target.dtype} {target.threads}"
    return f"{machine}; {runtime.version()}; {where}"


def _write(key: str, prices: Prices) -> None:
    """Add prices to the cache; whoever reads it meanwhile sees the old file or the new one."""
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as stream:
        json.dump(_kept() | {key: asdict(prices)}, stream, indent=2)
    Path(stream.name).replace(path)
