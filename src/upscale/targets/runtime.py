"""Runtimes: what every one of them has to know, how one is found by its name, and its prices.

A runtime is one file. It says how a model runs there, and what that costs; planning, `calibrate`,
`prune(measure=True)`, sweeps and the command line ask it, and name no runtime themselves. What
`calibrate` measures on a machine is kept there, and plans use it from then on.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.errors import TargetError
from upscale.targets.prices import BUILT_IN, Prices
from upscale.targets.target import ITEM_BYTES, RUNTIMES, Pricing, Target
from upscale.tools.moving import put_in_place
from upscale.tools.optional_packages import MissingPackageError


class Runtime(ABC):
    """One runtime: what it needs, how it runs a model, and what things cost there.

    `needs` are the packages it cannot run without, which the extra `extra` of ours installs.
    They are imported where they are used: a plan can be made for a runtime that is not here.
    `built_in` are the prices that plans reckon with until somebody calibrates. `in_torch` says
    whether its tensors are torch's, so that the memory a call holds can be seen. `moving` are the
    kinds of operations that compute nothing: copies, and changes of layout.
    """

    name: str
    needs: tuple[str, ...] = ()
    extra: str = ""
    built_in: Prices = BUILT_IN
    in_torch: bool = True
    moving: frozenset[str] = frozenset()

    @abstractmethod
    def version(self) -> str:
        """What measurements were made with: prices of another version do not count."""

    @abstractmethod
    def prepare(self, model: nn.Module, example: Example, target: Target) -> Callable[[], object]:
        """A call that runs a model on an example, ready to be timed; it returns the outputs.

        The example is laid out as the target has it. The model is somebody else's: copy it.
        """

    @abstractmethod
    def block(self, target: Target) -> int:
        """How many channels convolutions work on at once, on this machine."""

    @abstractmethod
    def measure(self, target: Target) -> Prices:
        """Prices measured on this machine, in seconds rather than minutes."""

    def pricing(self, target: Target, prices: Prices, scale: float) -> Pricing:
        """How prices add up to what reads and layers cost; where torch's way does not do, another.

        `scale` is the target's batch over the example's.
        """
        return Pricing(target, prices, scale)

    def operations(self, model: nn.Module, example: Example, target: Target) -> Counter[str]:
        """How many operations of each kind it runs for a model, once it has optimised it."""
        raise TargetError(f"the runtime {self.name} does not tell what it runs")

    def check_installed(self) -> None:
        """Raise `MissingPackageError` if a package that it needs is not there."""
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingPackageError(
                f"the runtime {self.name} needs {', '.join(missing)}: "
                f"pip install 'upscale[{self.extra}]'"
            )


def runtime_of(target: Target) -> Runtime:
    """What a target's runtime names; its file is imported now if nobody asked before."""
    found: Runtime = importlib.import_module(RUNTIMES[target.runtime]).RUNTIME
    return found


def target_like(example: Example) -> Target:
    """The target that an example speaks of: its batch, memory format and dtype."""
    first = next((x for x in example.tensors if x.is_floating_point()), None)
    if first is None:
        return Target(threads=torch.get_num_threads())
    last = first.dim() == 4 and not first.is_contiguous()
    last = last and first.is_contiguous(memory_format=torch.channels_last)
    dtype = str(first.dtype).removeprefix("torch.")
    return Target(
        device=first.device.type,
        memory_format="channels_last" if last else "contiguous",
        batch=max(1, first.shape[0]) if first.dim() else 1,
        threads=torch.get_num_threads(),
        dtype=dtype if dtype in ITEM_BYTES else "float32",
    )


def example_for(target: Target, example: Example) -> Example:
    """A copy of an example with the target's batch, by repeating it, and memory format."""
    times = max(1, round(target.batch / target_like(example).batch))
    last = target.memory_format == "channels_last"

    def laid_out(x: Tensor) -> Tensor:
        x = torch.cat([x] * times) if times > 1 and x.dim() else x
        return x.contiguous(memory_format=torch.channels_last) if last and x.dim() == 4 else x

    return example.copied().map(laid_out)


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


def calibrate(target: Target) -> Prices:
    """Measure what operations cost where a target's runtime runs; a matter of seconds.

    The result is kept in the user's cache directory, and plans use it from then on.
    """
    if target.device != "cpu":
        raise TargetError(f"nothing is known of the device {target.device!r}; only cpu is")
    runtime = runtime_of(target)
    runtime.check_installed()
    with computing_on(target.threads):
        prices = runtime.measure(target)
    _write(_key(target, runtime), prices)
    return prices


def pricing_for(example: Example, target: Target | None) -> Pricing:
    """What to reckon with on a target; on one like the example, if none is given."""
    like = target_like(example)
    target = target or like
    return runtime_of(target).pricing(target, prices_of(target), target.batch / like.batch)


def multiple_for(asked: int | str, example: Example, target: Target | None) -> int:
    """The number that widths shall be multiples of: as asked, or, for "target", what serves the
    convolutions of the target, or of one like the example."""
    if asked != "target":
        return asked  # type: ignore[return-value]  # checked with the other options
    prices = prices_of(target or target_like(example))
    return prices.align if prices.align > 1 else prices.block


def prices_of(target: Target) -> Prices:
    """The prices measured for a target on this machine, or its runtime's built-in ones."""
    runtime, kept = runtime_of(target), _kept()
    if not kept:
        return runtime.built_in
    try:
        return Prices.from_json(kept[_key(target, runtime)])
    except (ValueError, KeyError, TypeError, ImportError):
        return runtime.built_in


def _kept() -> dict[str, Any]:
    """All calibrations that are kept, whatever they hold."""
    try:
        kept = json.loads(cache_path().read_text(encoding="utf-8"))
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
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, delete=False, encoding="utf-8"
    ) as stream:
        json.dump(_kept() | {key: asdict(prices)}, stream, indent=2)
    put_in_place(Path(stream.name), path)
