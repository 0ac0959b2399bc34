"""Races: how long models take, measured turn by turn in one loop, so that ratios can be trusted."""

from __future__ import annotations

import io
import json
import os
import platform
import random
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from upscale.tools.quiet import unwarned


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
    peak: Callable[[Callable[[], object]], int] | None = None,
) -> dict[str, Measurement]:
    """Time every contestant once in each of the runs, each time in another order.

    Orders are drawn, always the same: if one came after the same other every time, it would find
    the processor's caches as that one leaves them.

    `peak` measures memory, with `peak_bytes` if not said.

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
        peaks = {name: (peak or peak_bytes)(contestants[name]) for name in names}
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    found = {}
    for name, own in taken.items():
        low, _, high = quantiles(own, n=4, method="inclusive") if len(own) > 1 else own * 3
        found[name] = Measurement(
            median_ms=median(own),
            low_ms=low,
            high_ms=high,
            runs=runs,
            warm_up=warm_up,
            threads=torch.get_num_threads(),
            peak_bytes=peaks[name],
            versions=versions,
            mean_ms=fmean(own),
            deviation_ms=stdev(own) if len(own) > 1 else None,
        )
    return found


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


def scripted(model: nn.Module, args: tuple[Any, ...]) -> Any:
    """A model as TorchScript runs it: traced on its arguments, and frozen.

    It is written and read before it is frozen: torch keeps for good what was traced, and would
    keep the weights of what is frozen from that, but lets go of what was read.
    """
    held = io.BytesIO()
    with torch.inference_mode(), unwarned():  # of tracing and of the format's age
        traced = torch.jit.trace(model.eval(), args, strict=False, check_trace=False)
        torch.jit.save(traced, held)
        held.seek(0)
        return torch.jit.freeze(torch.jit.load(held))


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
    held = most = 0
    for _, size in changes:
        held += size
        most = max(most, held)
    return most


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
