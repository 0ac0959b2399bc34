"""Targets: where an export will run. No torch."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from pathlib import Path

from upscale.errors import TargetError

# Every runtime is a module, `on_NAME.py` in this folder, which `runtime_of` imports when somebody
# asks for it. A runtime that lives elsewhere is one more entry: RUNTIMES["mine"] = "my.module".
RUNTIMES = {
    module.name.removeprefix("on_"): f"upscale.targets.{module.name}"
    for module in pkgutil.iter_modules([str(Path(__file__).parent)])
    if module.name.startswith("on_")
}
FORMATS = ("contiguous", "channels_last")
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Target:
    """Where an export will run: runtime, device, memory format, batch, threads and dtype.

    >>> Target(memory_format="channels_last", batch=8).item_bytes
    4
    """

    runtime: str = "torch"
    device: str = "cpu"
    memory_format: str = "contiguous"
    batch: int = 1
    threads: int = 1
    dtype: str = "float32"

    def __post_init__(self) -> None:
        choices = {"runtime": RUNTIMES, "memory_format": FORMATS, "dtype": ITEM_BYTES}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in tuple(known):
                raise TargetError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
        for name in ("batch", "threads"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise TargetError(f"{name} is {value!r}; it must be a whole number >= 1")

    @property
    def item_bytes(self) -> int:
        """What one number weighs."""
        return ITEM_BYTES[self.dtype]

    def is_inner(self, axis: int, rank: int) -> bool:
        """Whether the numbers along an axis of a tensor lie side by side in memory."""
        return axis == rank - 1 or (
            self.memory_format == "channels_last" and axis == 1 and rank in (4, 5)
        )
