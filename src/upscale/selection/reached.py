"""Reached: what a selection came to, and what stopped it short of the amount."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from upscale.channels import Flags
from upscale.selected.amounts import Reached
from upscale.selection.choosing import MET
from upscale.selection.measuring import LayerSizes
from upscale.selection.options import Options


def reached_by(
    kept: Mapping[str, Flags],
    widths: Mapping[str, int],
    sizes: LayerSizes,
    options: Options,
    exported: Mapping[str, float],
) -> Reached:
    """What the channels kept amount to; `exported` holds shares of an export, if asked for."""
    reached = Reached(
        asked=options.amount,
        channels=sizes.masked("channels", kept),
        parameters=sizes.masked("parameters", kept),
        macs=sizes.masked("macs", kept),
        widths=widths,
        exported_parameters=exported.get("parameters"),
        exported_macs=exported.get("macs"),
    )
    return replace(reached, stopped=_stopped(reached.share, kept, options))


def _stopped(share: float, kept: Mapping[str, Flags], options: Options) -> str:
    """Why the amount was not met, if it was not.

    A layer of 8 channels can only lose eighths: what misses the amount by less than the coarsest
    layer's step (or, where layers compete, by a channel or two of all) has met it.
    """
    asked = options.amount.share
    step = max((1 / max(1, len(flags)) for flags in kept.values()), default=0.0)
    if options.scope == "global":
        step = max(2 * MET * asked, 2 / max(1, sum(len(flags) for flags in kept.values())))
    rounded = asked and options.round_to > 1 and share > 0
    if share >= asked - step - 1e-9 or rounded:
        return ""
    if not kept:
        return "no layer of the model can be pruned here"
    floored = [name for name, flags in kept.items() if flags.sum() <= max(options.floor, 1)]
    whole = [name for name, flags in kept.items() if flags.all()]
    stuck = (("are at their floor", floored), ("keep everything", whole))
    because = [f"{len(names)} layers {do} ({names[0]}, ...)" for do, names in stuck if names]
    return "; ".join([*because, "the rest of the model cannot be pruned on this side"])
