"""Cells: one setting of a sweep each, checked, with a key that never changes."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

from upscale.errors import UpscaleError
from upscale.selection.options import OPTIONS
from upscale.targets.target import FORMATS, RUNTIMES

SHAPE = "1,3,224,224"
METRICS = ("accuracy", "latency", "parameters", "macs", "copies", "memory", "race")
# The options of `select` that a cell can set.
SELECTING = ("importance", "scope", "side", "constraint", "segments", "slack")
CHOICES: Mapping[str, Collection[str]] = {
    "of": ("channels", "parameters", "macs"),
    "method": ("optimal", "mrap", "none", "zero-copy"),
    "runtime": RUNTIMES,
    "memory_format": FORMATS,
}
# Settings that make no difference to a metric: cells that differ in nothing else are one cell.
INDIFFERENT = {
    "accuracy": ("method", "runtime", "memory_format", "runs"),
    "latency": ("data", "images"),
    "race": ("data", "images", "method"),
    **dict.fromkeys(("parameters", "macs", "copies", "memory"), ("data", "images", "runs")),
}


# What each step of a trial depends on, beside all that the steps before it do.
STEPS = {
    "model": ("model", "weights", "seed"),
    "importance": ("importance", "sample", "side", "constraint", "segments", "shape"),
    "selection": ("amount", "of", "scope", "slack"),
    "plan": ("method", "runtime", "memory_format", "threads"),
}


class GridError(UpscaleError, ValueError):
    """A grid, or the file it is read from, has a setting that is none."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting: what is pruned, how, and what is measured then.

    `weights`, `data` and `sample` are where weights, the images that accuracy is measured on
    and those that criteria look at come from. Names with a colon are import paths. `timeout` is
    how many seconds it may take; it is no part of what is measured, nor of the key.

    >>> Cell(model="upscale:digits", metric="copies", amount=0.25, shape="1,1,8,8").key
    '2e89485949fd634b'
    """

    model: str
    metric: str
    amount: float
    of: str = "channels"
    importance: str = OPTIONS["importance"].default
    scope: str = OPTIONS["scope"].default
    side: str = OPTIONS["side"].default
    constraint: str = OPTIONS["constraint"].default
    segments: str = OPTIONS["segments"].default
    slack: float = OPTIONS["slack"].default
    method: str = "optimal"
    weights: str | None = None
    shape: str = SHAPE
    data: str | None = None
    images: int | None = None
    sample: str | None = None
    runtime: str = "torch"
    memory_format: str = "contiguous"
    threads: int = 1
    runs: int = 20
    seed: int = 0
    timeout: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        def check(fits: Any, must_be: str, *names: str) -> None:
            for name in names:
                if not fits(value := getattr(self, name)):
                    raise GridError(f"{name} is {value!r}; it must be {must_be}")

        check(_is_text, "a name", "model", "metric", "importance")
        check(lambda v: v is None or _is_text(v), "a path", "weights", "data", "sample")
        for name, known in CHOICES.items():
            check(lambda v, k=known: v in tuple(k), _one_of(known), name)
        for name in SELECTING:
            check(OPTIONS[name].fits, OPTIONS[name].must_be, name)
        for name, known in (("metric", METRICS), ("importance", OPTIONS["importance"].choices)):
            told = f"{_one_of(known)}, or package.module:name"
            check(lambda v, k=known: v in k or ":" in v, told, name)
        check(lambda v: _is_whole(v) and v >= 1, "a whole number >= 1", "threads", "runs")
        check(lambda v: _is_whole(v) and v >= 0, "a whole number >= 0", "seed")
        check(lambda v: v is None or (_is_whole(v) and v > 0), "a number > 0", "images")
        check(sizes_of, f"sizes such as {SHAPE}", "shape")
        told = "a share from 0 up to, not with, 1"
        check(lambda v: is_number(v) and 0 <= v < 1, told, "amount")
        told = "a number of seconds > 0, or none"
        check(lambda v: v is None or (is_number(v) and v > 0), told, "timeout")
        object.__setattr__(self, "amount", round(float(self.amount), 9))
        object.__setattr__(self, "slack", round(float(self.slack), 9))

    @property
    def key(self) -> str:
        """What names this cell for good: a digest of all settings that are not the default.

        The timeout is left out: it says nothing of what is measured.
        So a setting that is invented later leaves the keys of older records as they were.
        """
        told = {name: value for name, value in asdict(self).items() if value != DEFAULTS.get(name)}
        told.pop("timeout", None)
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the example."""
        return sizes_of(self.shape)

    def settings_of(self, step: str) -> tuple[Any, ...]:
        """All settings that a step of its trial depends on."""
        steps = list(STEPS)[: list(STEPS).index(step) + 1]
        return tuple(getattr(self, name) for own in steps for name in STEPS[own])

    def settled(self) -> Cell:
        """The same cell, with defaults wherever a setting makes no difference to it."""
        names = set(INDIFFERENT.get(self.metric, ()))
        if self.constraint != "contiguous":
            names.add("slack")
        return replace(self, **{name: DEFAULTS[name] for name in names})

    def __str__(self) -> str:
        told = [self.metric, self.model, f"{self.amount:.4g} of {self.of}"]
        own = asdict(self)
        told += [
            str(own[name])
            for name, default in DEFAULTS.items()
            if own[name] != default and name not in UNSAID
        ]
        return " ".join(told)


UNSAID = {"of", "shape", "weights", "data", "sample", "timeout"}
DEFAULTS: Mapping[str, Any] = {
    own.name: own.default for own in fields(Cell) if own.default is not MISSING
}
REQUIRED = tuple(own.name for own in fields(Cell) if own.name not in DEFAULTS)
SETTINGS = tuple(own.name for own in fields(Cell))


def _one_of(known: Collection[str]) -> str:
    return f"one of {', '.join(known)}"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_whole(value: Any) -> bool:
    # What has thousands of digits can neither be printed nor written.
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 10_000


def is_number(value: Any) -> bool:
    """Whether a value is a finite number that a float can hold, and neither true nor false."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def sizes_of(shape: Any) -> tuple[int, ...]:
    """The sizes that a text such as `1,3,224,224` says; none, if it says anything else."""
    sizes = shape.split(",") if isinstance(shape, str) else [""]
    fits = all(size.isascii() and size.isdecimal() and int(size) > 0 for size in sizes)
    return tuple(map(int, sizes)) if fits else ()
