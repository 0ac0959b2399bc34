"""Random numbers of one thread, the same every time, which nobody else's depend on.

`torch.manual_seed` seeds the whole process. Another thread that draws meanwhile would get numbers
that it was given before.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_lock = threading.RLock()


class OwnDraws(TorchDispatchMode):
    """While it is on, operations of this thread that draw do so as if a seed had just been set.

    For the moment of each such operation, and no longer, torch's generators are as it left them.

    >>> def drawn() -> float:
    ...     with OwnDraws():
    ...         return torch.rand(1).item()
    >>> before = torch.get_rng_state()
    >>> drawn() == drawn(), torch.equal(torch.get_rng_state(), before)
    (True, True)
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._states: list[Tensor] | None = None

    def restart(self) -> None:
        """Draw from here on as at the beginning."""
        self._states = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **(kwargs or {}))
        generators = (torch.default_generator, *torch.cuda.default_generators)
        with _lock:
            before = [generator.get_state() for generator in generators]
            if self._states is None:
                for generator in generators:
                    generator.manual_seed(self._seed)
            else:
                _set(generators, self._states)
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self._states = [generator.get_state() for generator in generators]
                _set(generators, before)


def _set(generators: tuple[torch.Generator, ...], states: list[Tensor]) -> None:
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
