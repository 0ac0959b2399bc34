"""Selecting: a captured model and options become a selection, one step after the other.

What it came to is said with it, and what stopped it short of the amount.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from upscale.channels import Flags
from upscale.errors import AmountWarning
from upscale.lowering.lower import lower
from upscale.lowering.lowered import Lowered
from upscale.model.layers import layers, weight_of
from upscale.selected.amounts import Reached
from upscale.selected.selection import Selection
from upscale.selection.choosing import MET, Chooser, find_limits
from upscale.selection.importance import counts_costs
from upscale.selection.measuring import LayerSizes, measure_layers
from upscale.selection.options import Options
from upscale.selection.scoring import score_weights
from upscale.selection.streams import keep_contiguous
from upscale.selection.units import find_units
from upscale.subject import Subject


def select_channels(subject: Subject, options: Options) -> Selection:
    """Choose the channels that each layer of a subject keeps."""
    model, flow, names = subject.model, subject.flow, subject.weights
    alone = options.segments == "single-branch"
    units = find_units(flow, side=options.side, constraint=options.constraint, single_branch=alone)
    own = {name: weight for name, weight in names.items() if weight in units.of}
    # Weights that belong to no layer a selection can name have no say.
    units = units.only(frozenset(own.values()))
    limits = find_limits(options, layers(model), own, units)
    first = {weight: name for name, weight in reversed(own.items())}
    scores = score_weights(subject, first, options)
    limits = replace(limits, held=limits.held | (first.keys() - scores.keys()))
    scores |= {w: np.zeros(len(units.of[w])) for w in first if w not in scores}
    sizes: LayerSizes = measure_layers(
        flow, {names[name]: weight_of(layer).numel() for name, layer in layers(model).items()}
    )

    amount = options.amount
    by_cost = options.scope == "global" and counts_costs(options.importance)
    if by_cost:
        # What is worth most goes first: the least cost for what it saves.
        saved = {w: sizes.of_channel(amount.measure, w, len(own)) for w, own in scores.items()}
        scores = {weight: own / saved[weight] for weight, own in scores.items()}

    def selected(kept: Mapping[str, Flags], read: Mapping[str, Flags]) -> Selection:
        return Selection(
            kept={name: np.flatnonzero(kept[weight]).tolist() for name, weight in own.items()},
            side=options.side,
            after=options.after,
            windows={n: np.flatnonzero(read[w]).tolist() for n, w in own.items() if w in read},
        )

    def exported(kept: Mapping[str, Flags]) -> dict[str, float]:
        asked = (selected(kept, {}),)
        lowered = Lowered(flow, *subject.columns(asked))
        if subject.masks or options.side == "output":
            _, lowered = lower(subject, lowered, asked, "split")
        return sizes.exported(lowered)

    def measure(kept: Mapping[str, Flags]) -> float:
        asked = amount.measure
        return exported(kept)[asked] if amount.counts_export else sizes.masked(asked, kept)

    kept = _choose(Chooser(units, scores, limits, measure, by_cost=by_cost), options)
    read: Mapping[str, Flags] = {}
    if options.constraint == "contiguous":
        kept, read = keep_contiguous(flow, kept, scores, options.slack)

    shares = exported(kept) if amount.counts_export else {}
    reached = Reached(
        asked=amount,
        channels=sizes.masked("channels", kept),
        parameters=sizes.masked("parameters", kept),
        macs=sizes.masked("macs", kept),
        widths={name: len(units.of[weight]) for name, weight in own.items()},
        exported_parameters=shares.get("parameters"),
        exported_macs=shares.get("macs"),
    )
    reached = replace(reached, stopped=_stopped(reached.share, kept, options))
    if reached.stopped:
        message = f"asked {amount}, reached {reached.share:.2%}: {reached.stopped}"
        warnings.warn(message, AmountWarning, stacklevel=3)
    return replace(selected(kept, read), reached=reached)


def _choose(chooser: Chooser, options: Options) -> dict[str, Flags]:
    share = options.amount.share
    if options.scope == "global":
        return chooser.by_threshold(share)
    if options.amount.measure == "channels":
        return chooser.by_share(share)
    return chooser.by_share_that_meets(share)


def _stopped(share: float, kept: Mapping[str, Flags], options: Options) -> str:
    """Why the amount was not met, if it was not.

    A layer of 8 channels can only lose eighths: what misses the amount by less than the coarsest
    layer's step (or, where layers compete, by a channel or two of all) has met it.
    """
    asked = options.amount.share
    step = max((1 / max(1, len(flags)) for flags in kept.values()), default=0.0)
    if options.scope == "global" and not counts_costs(options.importance):
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
