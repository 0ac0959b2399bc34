"""The options of `select`, declared once: default, choices, and the words that speak of them.

`upscale.select` and `upscale.prune` make an `Options` of what they are called with, the command
line makes its arguments of `OPTIONS`, and sweeps check their cells against it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from upscale.errors import SelectionError
from upscale.selected.amounts import Amount
from upscale.selected.selection import AFTER, SIDES, Selection
from upscale.selection.importance import CRITERIA, Importance, Scorer, importance_of

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True)
class Option:
    """What one option is if nobody says, what it is about, and what it may be.

    `choices` are the names it may have, `number` is the type of number that it is; `words` stand
    for numbers that are found when it is known what they depend on.

    >>> OPTIONS["scope"].default, OPTIONS["scope"].choices
    ('local', ('local', 'global'))
    >>> OPTIONS["floor"].complaint("floor", -1)
    'floor is -1; it must be a whole number >= 0'
    """

    default: Any
    about: str
    must_be: str = ""
    fits: Callable[[Any], bool] = lambda _: True
    choices: tuple[str, ...] = ()
    number: type[int] | type[float] | None = None
    words: tuple[str, ...] = ()

    def complaint(self, name: str, value: Any) -> str:
        """What is wrong with a value; nothing, if it fits."""
        return "" if self.fits(value) else f"{name} is {value!r}; it must be {self.must_be}"

    def declared(self) -> Any:
        """The field of a dataclass that this is."""
        return field(default=self.default, metadata={"option": self})


def _choice(about: str, *choices: str) -> Any:
    """One of several names, the first if nobody says."""
    must_be = f"one of {', '.join(repr(choice) for choice in choices)}"
    return Option(choices[0], about, must_be, choices.__contains__, choices).declared()


def _number(
    kind: type[int] | type[float], default: float, about: str, least: int, *words: str
) -> Any:
    def fits(value: Any) -> bool:
        number = isinstance(value, (int, kind)) and not isinstance(value, bool)
        return number and least <= value <= sys.float_info.max

    must_be = f"a whole number >= {least}" if kind is int else f"a share, {least} or more"
    return Option(default, about, must_be, fits, number=kind, words=words).declared()


# What else a criterion may be, a function or an object, is known where criteria are.
IMPORTANCE = Option(
    "l2", "how channels are scored; the lowest go", choices=tuple(CRITERIA)
).declared()
IGNORE = Option(
    (), "layers that keep all", "a list of patterns", lambda own: not isinstance(own, str)
).declared()


@dataclass(frozen=True, slots=True)
class Options:
    """What to select: the arguments of `upscale.select`, checked."""

    amount: Amount
    importance: str | Importance | Scorer = IMPORTANCE
    scope: str = _choice(
        "the same share of every layer, or the lowest scores of all", "local", "global"
    )
    side: str = _choice("drop what layers read, or what they make", *SIDES)
    constraint: str = _choice(
        "each layer for itself, all readers alike, windows of one order, or heads whole",
        *("none", "segment", "contiguous", "heads"),
    )
    segments: str = _choice(
        "everywhere, or only where one layer feeds one other", "all", "single-branch"
    )
    after: str = _choice("make outputs zero after the layer's BatchNorm, or before it", *AFTER)
    data: Iterable[Any] | None = None
    loss: Loss | None = None
    overrides: Mapping[str, float] | None = None
    ignore: Iterable[str] = IGNORE
    floor: int = _number(int, 1, "keep N channels of every layer at least", 0)
    round_to: int = _number(int, 1, "keep multiples of N, or of what suits the target", 1, "target")
    slack: float = _number(float, 0.1, "how much wider windows are than what is kept in them", 0)
    within: Selection | None = None

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            if wrong := option.complaint(name, getattr(self, name)):
                raise SelectionError(wrong)
        importance_of(self.importance)
        if self.constraint == "contiguous" and self.side == "output":
            raise SelectionError("the constraint 'contiguous' is of the input side only")
        if self.constraint == "heads" and self.side == "output":
            raise SelectionError("the constraint 'heads' is of the input side only")
        if self.within is not None and self.within.side != self.side:
            raise SelectionError("within is a selection of the other side")


# Every option that says more than its type, by name.
OPTIONS: Mapping[str, Option] = {
    own.name: own.metadata["option"] for own in fields(Options) if own.metadata
}
