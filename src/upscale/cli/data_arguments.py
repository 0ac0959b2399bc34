"""The arguments of data: where it is, how it is prepared, and what is done with it."""

from __future__ import annotations

import argparse
import math
from typing import Any

from upscale.cli.reading import ArgumentsError, count, decimal, reader, whole
from upscale.lab.inputs import INPUTS_HELP
from upscale.selection.importance import BY_WEIGHT

FITTED, BATCH, SEED = 256, 32, 0
# Options that mean something with data alone.
ABOUT_DATA = (
    "recover",
    "bias",
    "images",
    "test_images",
    "batch",
    "seed",
    "size",
    "mean",
    "deviation",
)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(decimal(part) for part in text.split(","))
    return sizes * 2 if len(sizes) == 1 else sizes


def _rows(value: Any, least: float) -> bool:
    """Whether a value is one number, or one for each of three colours."""
    return (
        isinstance(value, tuple)
        and len(value) in (1, 3)
        and all(least < own < math.inf for own in value)
    )


_size = reader(
    _sizes,
    lambda value: isinstance(value, tuple) and len(value) == 2 and min(value) > 0,
    "a side such as 224, or height and width such as 224,288",
)
_mean = reader(_numbers, lambda value: _rows(value, -math.inf), "a number, or three with commas")
_deviation = reader(_numbers, lambda value: _rows(value, 0), "a number > 0, or three with commas")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Let data be given, and said how it is used."""
    add = parser.add_argument_group("data").add_argument
    add("--data", metavar="PATH", help=INPUTS_HELP)
    add(
        *("--recover",),
        nargs="?",
        const="all",
        choices=("all", "norms"),
        help="refit what is left on the data, without labels; with norms, BatchNorms alone",
    )
    about = "let the refit add a bias where a layer has none, and no BatchNorm behind it"
    add("--bias", action="store_true", default=None, help=about)
    add("--images", type=whole, metavar="N", help=f"how many to draw; {FITTED} if not said")
    about = "how many others to answer before and after; as many as --images if not said"
    add("--test-images", type=count, metavar="N", help=about)
    add("--batch", type=whole, metavar="N", help=f"images at a time; {BATCH} if not said")
    add("--seed", type=count, metavar="N", help=f"of the draw; {SEED} if not said")
    add("--size", type=_size, help="of images: what --shape says, if not said")
    about = "of pixels from 0 to 1, subtracted; ImageNet's if not said"
    add("--mean", type=_mean, metavar="X[,X,X]", help=about)
    about = "of pixels, divided by; ImageNet's if not said"
    add("--deviation", type=_deviation, metavar="X[,X,X]", help=about)


def check_data(arguments: argparse.Namespace) -> None:
    """Raise if something is asked for that needs data, and none is given."""
    if arguments.data is not None:
        return
    for name in ABOUT_DATA:
        if getattr(arguments, name) is not None:
            raise ArgumentsError(f"--{name.replace('_', '-')} needs data: give --data too")
    if arguments.importance not in BY_WEIGHT:
        raise ArgumentsError(f"--importance {arguments.importance} needs data: give --data too")
