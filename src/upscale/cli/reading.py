"""Reading what an argument says: numbers that must fit."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

from upscale.errors import UpscaleError


class ArgumentsError(UpscaleError, ValueError):
    """The command line says something that no command takes."""


def reader(
    read: Callable[[str], Any], fits: Callable[[Any], bool], must_be: str, words: Sequence[str] = ()
) -> Callable[[str], Any]:
    """What gives the value that an argument says, or says what it must be; words stay as they
    are."""

    def checked(text: str) -> Any:
        if text in words:
            return text
        try:
            value = read(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(
                f"it is {text!r}; it must be {' or '.join((must_be, *words))}"
            )
        return value

    return checked


def decimal(text: str) -> int:
    """The number that digits alone say; -1 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() else -1


whole = reader(decimal, lambda value: value > 0, "a whole number >= 1")
count = reader(decimal, lambda value: value >= 0, "a whole number >= 0")
