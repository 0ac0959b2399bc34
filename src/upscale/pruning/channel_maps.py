"""Where channels went: from the places they had in a model's layers to those in its export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from upscale.model.accepting import settled
from upscale.model.layers import column_axis, layers, weight_names, weight_of
from upscale.planning import Plan


@dataclass(frozen=True, slots=True)
class ChannelMap:
    """The new place of each input and output channel of a layer that stays, by the old one."""

    inputs: Mapping[int, int]
    outputs: Mapping[int, int]


def channel_maps(model: nn.Module, plan: Plan) -> dict[str, ChannelMap]:
    """Old places to new ones for every convolution and linear of the model a plan was made for.

    Places are those along the axes of the layer's own weight.

    >>> import torch, upscale
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    >>> plan = upscale.plan(net, torch.zeros(1, 4), upscale.Selection(kept={"1": [0, 2]}))
    >>> channel_maps(net, plan)["0"].outputs
    {0: 0, 2: 1}
    """
    model = settled(model)
    names = weight_names(model)
    maps = {}
    for name, layer in layers(model).items():
        cuts, axis = plan.weights.cuts.get(names[name], {}), column_axis(layer)
        sizes = weight_of(layer).shape
        inputs, outputs = (
            {old: new for new, old in enumerate(cuts.get(along, range(sizes[along])))}
            for along in (axis, 1 - axis)
        )
        maps[name] = ChannelMap(inputs, outputs)
    return maps
