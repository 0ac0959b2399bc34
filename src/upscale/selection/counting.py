"""Counting: the weights and multiply-accumulates of a model's layers. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from upscale.channels import Flags
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.relations import Line, Reduce


@dataclass(frozen=True, slots=True)
class Costs:
    """What all layers' weights amount to, by the name of the weight."""

    parameters: Mapping[str, int]
    macs: Mapping[str, int]

    def of(self, measure: str) -> Mapping[str, int]:
        """The costs of a measure: `parameters` or `macs`."""
        return self.parameters if measure == "parameters" else self.macs

    def pruned(self, measure: str, kept: Mapping[str, Flags]) -> float:
        """The share that masks take away: each weight loses its pruned channels' part."""
        costs = self.of(measure)
        gone = sum(costs.get(name, 0) * float(1 - own.mean()) for name, own in kept.items())
        return gone / max(1, sum(costs.values()))


def count(flow: ChannelFlow, parameters: Mapping[str, int]) -> Costs:
    """The costs of layers with the given numbers of weights, on the example."""
    macs: dict[str, int] = defaultdict(int)
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and relation.layer[1:] in parameters:
                name = relation.layer[1:]
                macs[name] += parameters[name] * positions(flow, relation)
    return Costs(parameters, dict(macs))


def positions(flow: ChannelFlow, relation: Reduce) -> int:
    """How often each weight of a layer is multiplied: once a place in space."""
    transposed = relation.column_axis == 0
    line: Line = relation.read if transposed else relation.out
    return int(np.prod(flow.shapes[line.value])) // max(1, flow.sizes[line])


def channels_pruned(kept: Mapping[str, Flags]) -> float:
    """The share of all channels that masks take away."""
    total = sum(len(own) for own in kept.values())
    return sum(int((~own).sum()) for own in kept.values()) / max(1, total)
