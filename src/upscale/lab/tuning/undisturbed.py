"""Looking at data and models without leaving a trace in anything that is random."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

MOST_VISITED = 10_000
PLAIN = (str, bytes, int, float, complex, type(None), Tensor, np.ndarray, type, ModuleType)
EMPTY = CellType()

Draw = Callable[[Callable[[], Any]], Any]


@contextmanager
def undisturbed(*holders: object) -> Iterator[Draw]:
    """A way to call functions as if nothing had been drawn before, always with the same outcome.

    All generators, those of torch, numpy and Python and those that the holders keep for
    themselves, are afterwards as they were.
    """
    own = _generators(holders)
    restore = [_restorer(generator) for generator in own]
    known, legacy = random.getstate(), np.random.get_state()

    # `torch.manual_seed` would also seed devices that nobody has used yet, for good.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()

    def draw(call: Callable[[], Any]) -> Any:
        torch.default_generator.manual_seed(0)
        if devices:
            torch.cuda.manual_seed_all(0)
        random.seed(0)
        np.random.seed(0)
        for generator in own:
            _seed(generator)
        return call()

    with torch.random.fork_rng(devices=devices):
        try:
            yield draw
        finally:
            random.setstate(known)
            np.random.set_state(legacy)
            for back in restore:
                back()


def _generators(holders: tuple[object, ...]) -> list[Any]:
    """The generators that objects hold, near the surface first, as far as a bounded look goes."""
    kinds = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
    found: list[Any] = []
    ahead, seen = deque(holders), set[int]()
    while ahead and len(seen) < MOST_VISITED:
        thing = ahead.popleft()
        if id(thing) in seen or isinstance(thing, PLAIN):
            continue
        seen.add(id(thing))
        if isinstance(thing, kinds):
            if not isinstance(thing, random.SystemRandom):
                found.append(thing)
        else:
            ahead.extend(_parts(thing))
    return found


def _parts(thing: Any) -> list[Any]:
    if isinstance(thing, Mapping):
        return list(thing.values())[:MOST_VISITED]
    if isinstance(thing, (list, tuple, set, frozenset)):
        return list(thing)[:MOST_VISITED]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, MethodType):
        return [thing.__self__]
    if isinstance(thing, FunctionType):
        return [cell.cell_contents for cell in thing.__closure__ or () if cell != EMPTY]
    slots = {name for kind in type(thing).__mro__ for name in kind.__dict__.get("__slots__", ())}
    held = [getattr(thing, name, None) for name in sorted(slots)]
    return [*getattr(thing, "__dict__", {}).values(), *held]


def _restorer(generator: Any) -> Callable[[], object]:
    """What puts a generator back to where it is now."""
    if isinstance(generator, np.random.Generator):
        bits, state = generator.bit_generator, generator.bit_generator.state
        return lambda: setattr(bits, "state", state)
    if isinstance(generator, random.Random):
        return functools.partial(generator.setstate, generator.getstate())
    return functools.partial(generator.set_state, generator.get_state())


def _seed(generator: Any) -> None:
    if isinstance(generator, np.random.Generator):
        bits: Any = generator.bit_generator
        bits.state = type(bits)(0).state
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(0)
    else:
        generator.seed(0)
