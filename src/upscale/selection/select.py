"""Selecting: a captured model and options become a selection, one step after the other.

What it came to is said with it, and what stopped it short of the amount.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from upscale.channels import Flags
from upscale.errors import AmountWarning
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.segments import carried_classes
from upscale.lowering.lower import lower
from upscale.model.layers import copied, layers, weight_of
from upscale.names import Parameter
from upscale.selected.amounts import Reached
from upscale.selected.selection import Selection
from upscale.selection.choosing import MET, Chooser, find_limits
from upscale.selection.importance import Study, importance_of, score
from upscale.selection.measuring import measure_layers
from upscale.selection.options import Options
from upscale.selection.streams import keep_contiguous
from upscale.selection.units import Scores, find_units
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
    inputs = len(subject.example.args) or 1
    scores = score_weights(model, flow, inputs, first, options)
    limits = replace(limits, held=limits.held | (first.keys() - scores.keys()))
    scores |= {w: np.zeros(len(units.of[w])) for w in first if w not in scores}
    sizes = measure_layers(
        flow, {names[name]: weight_of(layer).numel() for name, layer in layers(model).items()}
    )

    def selected(kept: Mapping[str, Flags], read: Mapping[str, Flags]) -> Selection:
        return Selection(
            kept={name: np.flatnonzero(kept[weight]).tolist() for name, weight in own.items()},
            side=options.side,
            after=options.after,
            windows={n: np.flatnonzero(read[w]).tolist() for n, w in own.items() if w in read},
        )

    def exported(kept: Mapping[str, Flags]) -> dict[str, float]:
        return sizes.exported(lower(subject, (selected(kept, {}),), "split")[1])

    amount = options.amount

    def measure(kept: Mapping[str, Flags]) -> float:
        asked = amount.measure
        return exported(kept)[asked] if amount.counts_export else sizes.masked(asked, kept)

    kept = _choose(Chooser(units, scores, limits, measure), options)
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


def score_weights(
    model: nn.Module, flow: ChannelFlow, inputs: int, names: Mapping[str, str], options: Options
) -> dict[str, Scores]:
    """A score for every channel of each weight, by the weight; weights without any are left out.

    `names` has a layer for each weight, `inputs` is how many positional inputs the model
    takes. Where layers compete, criteria whose scores mean something else in every layer are
    divided by their mean there: the average channel of each layer scores 1.
    """
    if not names:
        return {}
    study = Study(
        # On data it is run, with hooks and in another mode; whoever uses the model sees none of it.
        model=model if options.data is None else copied(model, {}),
        names=tuple(names.values()),
        side=options.side,
        data=options.data,
        loss=options.loss,
        inputs=inputs,
        norms=partial(norm_scales, model, flow, names, options.side),
    )
    by_layer = score(options.importance, study)
    scores = {weight: by_layer[name].numpy() for weight, name in names.items() if name in by_layer}
    if options.scope == "local" or getattr(importance_of(options.importance), "comparable", True):
        return scores
    means = {weight: np.abs(own).sum() / max(1, len(own)) for weight, own in scores.items()}
    return {weight: own / (means[weight] or 1.0) for weight, own in scores.items()}


def norm_scales(
    model: nn.Module, flow: ChannelFlow, names: Mapping[str, str], side: str
) -> dict[str, Tensor]:
    """For each layer the BatchNorm scales of the channels it reads, or makes.

    A channel that several BatchNorms scale before they are summed has the sum of their scales.
    Layers with a channel that no BatchNorm scales have no entry.
    """
    scales: dict[str, Scores] = {
        Parameter(f"{name}.weight"): module.weight.detach().abs().double().cpu().numpy()
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.weight is not None
    }
    if not scales:
        return {}
    by_class: dict[int, float] = defaultdict(float)
    for _, passing in flow.passes:
        for line in passing.reads:
            if passing.out in flow.classes and line.value in scales:
                classes = flow.classes[passing.out].tolist()
                for tied, scale in zip(classes, scales[line.value], strict=True):
                    by_class[tied] += float(scale)
    carried = carried_classes(flow)
    by_layer: dict[str, Tensor] = {}
    for _, relation in flow.layers:
        if relation.name not in names:
            continue
        line = relation.read if side == "input" else relation.out
        classes = [carried.get(c, c) for c in flow.classes[line].tolist()]
        if all(c in by_class for c in classes):
            groups = relation.groups if side == "input" else 1
            values = torch.tensor([by_class[c] for c in classes], dtype=torch.float64)
            by_layer[names[relation.name]] = values.reshape(groups, -1).mean(dim=0)
    return by_layer
