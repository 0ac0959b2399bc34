"""Biases: a layer that has none, and no norm behind it, can be given one to be fitted.

`y = W x` without columns 1 and 3 misses what they added on average, and nothing else can make up
for that. A bias can; it is one more parameter for each channel, so it is added only if asked for.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

from torch import nn

from upscale.model.layers import weight_names, weight_of
from upscale.recovery.sites import find_sites
from upscale.subject import Subject


def with_biases(subject: Subject) -> Subject:
    """The subject with a bias of zeros in each layer that a fit could use one in.

    That is a module of its own, refitted, without a bias or a BatchNorm; nothing else changes.
    """
    sites, _ = find_sites(subject.captured, subject.model)
    wanting = {site.weight for site in sites.values() if not site.shifts}
    names = weight_names(subject.model)
    times = Counter(names.values())
    layers = [n for n, weight in names.items() if weight in wanting and times[weight] == 1]
    if not layers:
        return subject
    model = copy.deepcopy(subject.model)
    for name in layers:
        layer: Any = model.get_submodule(name)
        weight = weight_of(layer)
        made = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
        zeros = weight.detach().new_zeros(made)
        layer.bias = nn.Parameter(zeros, requires_grad=weight.requires_grad)
    return subject.tuned(model)
