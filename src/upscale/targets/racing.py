"""Races: how long models take, measured turn by turn in one loop, so that ratios can be trusted."""

from __future__ import annotations

import platform
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median, quantiles, stdev
from typing import Any

import torch
from torch import nn

from upscale.capture import Example
from upscale.targets.memory import peak_bytes
from upscale.targets.runtime import example_for, runtime_of
from upscale.targets.target import Target


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long one call takes, in milliseconds: the median of the runs, their quartiles,
    and mean and standard deviation, which a disturbed run moves and a median it does not.

    `peak_bytes` is the most memory that a call held of its own, `versions` what ran it.
    Compare only what one race measured.
    """

    median_ms: float
    low_ms: float
    high_ms: float
    runs: int
    warm_up: int
    threads: int
    peak_bytes: int
    versions: str
    mean_ms: float | None = None
    deviation_ms: float | None = None

    def __str__(self) -> str:
        spread = f"half of {self.runs} runs {self.low_ms:.2f} to {self.high_ms:.2f}"
        return f"{self.median_ms:.2f} ms ({spread}), at most {self.peak_bytes / 1e6:.1f} MB at once"


def race(
    contestants: Mapping[str, Callable[[], object]],
    *,
    runs: int = 20,
    warm_up: int = 3,
    peak: Callable[[Callable[[], object]], int] = peak_bytes,
    version: str = f"torch {torch.__version__}",
) -> dict[str, Measurement]:
    """Time every contestant once in each of the runs, each time in another order.

    Orders are drawn, always the same: if one came after the same other every time, it would find
    the processor's caches as that one leaves them.

    `peak` measures memory; `version` is that of what runs them.

    >>> sorted(race({"a": lambda: None, "b": lambda: None}, runs=2))
    ['a', 'b']
    """
    names = list(contestants)
    taken: dict[str, list[float]] = {name: [] for name in names}
    with torch.inference_mode():
        for name in names:
            for _ in range(warm_up):
                contestants[name]()
        draw = random.Random(0)
        for _ in range(runs):
            for name in draw.sample(names, len(names)):
                start = time.perf_counter()
                contestants[name]()
                taken[name].append(1000 * (time.perf_counter() - start))
        peaks = {name: peak(contestants[name]) for name in names}
    measured = {}
    for name, times in taken.items():
        low, _, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
        measured[name] = Measurement(
            median_ms=median(times),
            low_ms=low,
            high_ms=high,
            runs=runs,
            warm_up=warm_up,
            threads=torch.get_num_threads(),
            peak_bytes=peaks[name],
            versions=f"{version}, Python {platform.python_version()}",
            mean_ms=fmean(times),
            deviation_ms=stdev(times) if len(times) > 1 else None,
        )
    return measured


def race_models(
    models: Mapping[str, nn.Module],
    example: Any,
    target: Target,
    *,
    runs: int = 20,
    peak: Callable[[Callable[[], object]], int] = peak_bytes,
) -> dict[str, Measurement]:
    """Time models as a target would run them, turn by turn."""
    runtime, suited = runtime_of(target), example_for(target, Example.of(example))
    runtime.check_installed()
    with computing_on(target.threads):
        ready = {name: runtime.prepare(own, suited, target) for name, own in models.items()}
        return race(ready, runs=runs, peak=peak, version=runtime.version())


_computing = threading.RLock()


@contextmanager
def computing_on(threads: int) -> Iterator[None]:
    """Let torch compute on so many threads for a while.

    That is a setting of the whole process, so whoever sets it takes turns: two at once would each
    put back what the other had set. What is timed should be alone, too.
    """
    with _computing:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
