"""Measuring: what a choice of channels amounts to, as masks or in an export. No torch.

Masks make columns of a weight zero (on the output side rows). An export does without more: rows
that nobody reads, and columns that only meet zeros. Which rows and columns stay follows from what
is live; orders, layouts and edges have no say, so nothing is planned for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from upscale.channels import Flags, Parameter
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.liveness import Liveness, find_live
from upscale.flow.relations import Reduce
from upscale.lowering.lowered import Lowered


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """How many parameters and multiply-accumulates every layer has, by the name of its weight.

    >>> sizes = LayerSizes({"a.weight": 8, "b.weight": 24}, {"a.weight": 80, "b.weight": 24})
    >>> sizes.masked("parameters", {"b.weight": np.array([True, False, False])})
    0.5
    """

    parameters: Mapping[str, int]
    macs: Mapping[str, int]

    def masked(self, measure: str, kept: Mapping[str, Flags]) -> float:
        """The share that masks take away: each weight loses its pruned channels' part."""
        if measure == "channels":
            return channels_masked(kept)
        sizes = self.parameters if measure == "parameters" else self.macs
        gone = sum(sizes.get(weight, 0) * float(1 - flags.mean()) for weight, flags in kept.items())
        return gone / max(1, sum(sizes.values()))

    def of_channel(self, measure: str, weight: str, channels: int) -> float:
        """What one of a weight's channels amounts to."""
        if measure == "channels":
            return 1.0
        sizes = self.parameters if measure == "parameters" else self.macs
        return max(1, sizes.get(weight, 0)) / max(1, channels)

    def exported(self, lowered: Lowered) -> dict[str, float]:
        """The shares of parameters and macs that an export does without."""
        flow, live = lowered.flow, find_live(lowered.flow, lowered.kept)
        beside = {gating.weight for gating in lowered.gates.values()}
        # What no step reaches stays as it is.
        reached = {r.name for _, r in flow.layers}
        left = {w: float(size) for w, size in self.parameters.items() if w not in reached}
        macs = 0.0
        for step, relation in flow.layers:
            weight, share = relation.name, _share_left(lowered, live, step, relation)
            if weight in self.parameters:
                left[weight] = self.parameters[weight] * share
                macs += left[weight] * places(flow, relation)
            elif weight in beside:
                # A layer that reads a gate has one number for each row and column, and meets
                # each image once.
                left[weight] = share * prod(flow.shapes[relation.weight])
                macs += left[weight]
        return {
            "parameters": 1 - sum(left.values()) / max(1, sum(self.parameters.values())),
            "macs": 1 - macs / max(1, sum(self.macs.values())),
        }


def measure_layers(flow: ChannelFlow, parameters: Mapping[str, int]) -> LayerSizes:
    """The sizes of layers with the given numbers of weights, on the example."""
    macs: dict[str, int] = defaultdict(int)
    for _, relation in flow.layers:
        if relation.name in parameters:
            macs[relation.name] += parameters[relation.name] * places(flow, relation)
    return LayerSizes(parameters, dict(macs))


def _share_left(lowered: Lowered, live: Liveness, step: Step, relation: Reduce) -> float:
    """The share of a layer's weight that an export still multiplies with.

    A layer that keeps 3 of 4 columns, of whose 8 rows 2 are read, is left with 3/4 * 2/8 of it.
    """
    columns = len(relation.columns_kept(lowered.kept))
    if step.node not in live.steps or columns == 0:
        return 0.0  # nobody asks for it; or it gives its bias, and multiplies nothing
    if not isinstance(relation.weight, Parameter):
        return 1.0  # what is computed anew in every call stays as wide as it is
    sizes = lowered.flow.shapes[relation.weight]
    share = int(live.lines[relation.out].sum()) / max(1, sizes[relation.row_axis])
    if relation.channelwise:
        return share  # its columns are its rows
    if relation.read in lowered.flow.blocks and relation.groups == 1:
        # Blocks hold a few channels more than are kept, and all are read.
        columns = int(live.lines[relation.read].sum())
    return share * columns / max(1, sizes[relation.column_axis])


def places(flow: ChannelFlow, relation: Reduce) -> int:
    """How often each weight of a layer is multiplied: once a place in space."""
    transposed = relation.column_axis == 0
    line = relation.read if transposed else relation.out
    return int(np.prod(flow.shapes[line.value])) // max(1, flow.sizes[line])


def channels_masked(kept: Mapping[str, Flags]) -> float:
    """The share of all channels that masks take away.

    >>> channels_masked({"a.weight": np.array([True, True, False, False])})
    0.5
    """
    total = sum(len(flags) for flags in kept.values())
    return sum(int((~flags).sum()) for flags in kept.values()) / max(1, total)
