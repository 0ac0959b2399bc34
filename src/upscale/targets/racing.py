"""Measurements: how long models take, turn by turn in one loop, and how much memory they hold."""

from __future__ import annotations

import json
import os
import platform
import random
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from upscale.capture import Example
from upscale.targets.runtime import computing_on, example_for, runtime_of
from upscale.targets.target import Target


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that the tensors which a call makes hold at once.

    What TorchScript runs is not seen; `profiled_peak_bytes` sees it.

    >>> peak_bytes(lambda: torch.ones(1000) + 1)
    8000
    """
    memory = _Memory()
    with memory:
        call()
    return memory.most


def profiled_peak_bytes(call: Callable[[], object]) -> int:
    """The same by PyTorch's profiler: all that is allocated, workspaces of operations included.

    >>> profiled_peak_bytes(lambda: torch.ones(1000)) >= 4000
    True
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it tells on stderr of every start and stop
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    most: int = max(accumulate((size for _, size in changes), initial=0))
    return most


def unseen(call: Callable[[], object]) -> int:
    """Nothing: where tensors are not torch's, nobody sees what memory they hold."""
    return 0


class _Memory(TorchDispatchMode):
    """Watches tensors come and go."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.held: int = 0
        self.most: int = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and _address(tensor) not in given | self._known:
                self._meet(tensor.untyped_storage())
        return result

    def _meet(self, storage: torch.UntypedStorage) -> None:
        size, address = storage.nbytes(), storage.data_ptr()
        self._known.add(address)
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._leave, size, address)

    def _leave(self, size: int, address: int) -> None:
        self.held -= size
        self._known.discard(address)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@dataclass(frozen=True, slots=True)
class Measurement:
    """How long one call takes, in milliseconds: the median of the runs, their quartiles,
    and mean and standard deviation, which a disturbed run moves and a median it does not.

    `peak_bytes` is the most memory that a call held of its own, 0 where that is not seen;
    `versions` what ran it.
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
        memory = f", at most {self.peak_bytes / 1e6:.1f} MB at once" if self.peak_bytes else ""
        return f"{self.median_ms:.2f} ms ({spread}){memory}"


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
        seen = peak if runtime.in_torch else unseen
        return race(ready, runs=runs, peak=seen, version=runtime.version())
