"""Limits: what layers hold on to, whatever their scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from upscale.channels import Positions
from upscale.errors import SelectionError
from upscale.selected.amounts import Amount
from upscale.selection.options import Options
from upscale.selection.units import Units


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds a choice back, by weight: shares of their own, layers that keep everything,
    and channels that are gone already.

    Every layer keeps `floor` channels at least, and a multiple of `round_to` where it can.
    """

    shares: Mapping[str, float]
    held: frozenset[str]
    gone: Mapping[str, Positions]
    floor: int = 1
    round_to: int = 1


def find_limits(
    options: Options, layers: Iterable[str], weights: Mapping[str, str], units: Units
) -> Limits:
    """The limits that options set. `weights` are those with a choice, by their layers' names.

    Patterns may name any of the model's layers; those without a choice keep all anyway.
    """
    names = tuple(layers)

    def matching(pattern: str, option: str) -> list[str]:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise SelectionError(
                f"{option}: {pattern!r} matches no convolution or linear; patterns are layer "
                "names, with * for any part"
            )
        return [weights[name] for name in found if name in weights]

    shares = {
        weight: Amount(share).share
        for pattern, share in (options.overrides or {}).items()
        for weight in matching(pattern, "overrides")
    }
    held = frozenset(weight for own in options.ignore for weight in matching(own, "ignore"))
    before = options.within.kept if options.within else {}
    gone = {
        weights[name]: np.setdiff1d(np.arange(len(units.of[weights[name]])), list(kept))
        for name, kept in before.items()
        if name in weights
    }
    return Limits(shares, held, gone, options.floor, options.round_to)
