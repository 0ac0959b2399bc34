"""Runtimes: what every one of them has to know, and how one is found by its name.

A runtime is one file. It says how a model runs there, and what that costs; planning, `calibrate`,
`prune(measure=True)`, sweeps and the command line ask it, and name no runtime themselves.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.targets.prices import BUILT_IN, Prices
from upscale.targets.pricing import Pricing
from upscale.targets.target import ITEM_BYTES, RUNTIMES, Target
from upscale.tools.optional_packages import MissingPackageError


class Runtime(ABC):
    """One runtime: what it needs, how it runs a model, and what things cost there.

    `needs` are the packages it cannot run without, which the extra `extra` of ours installs.
    They are imported where they are used: a plan can be made for a runtime that is not here.
    `built_in` are the prices that plans reckon with until somebody calibrates.
    """

    name: str
    needs: tuple[str, ...] = ()
    extra: str = ""
    built_in: Prices = BUILT_IN

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
