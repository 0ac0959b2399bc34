"""Which heads of attention can leave a model."""

from __future__ import annotations

from typing import Any

from torch import nn

from upscale.model.accepting import ordinary_tensors
from upscale.selected.heads import Heads
from upscale.subject import Subject


@ordinary_tensors()
def heads(model: nn.Module, example: Any) -> Heads:
    """The heads that can leave a model whole, by the layers that read them.

    >>> import torch, upscale
    >>> encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> found = heads(nn.Sequential(encoder).eval(), torch.zeros(1, 5, 8))
    >>> dict(found.of)
    {'0.self_attn.out_proj': (2, 4)}
    >>> selection = found.keeping({"0": [1]})
    """
    return heads_of(Subject.of(model, example, numbers=False))


def heads_of(subject: Subject) -> Heads:
    """The heads of a subject."""
    flow, found = subject.flow, {}
    layers = {weight: name for name, weight in reversed(subject.weights.items())}
    for _, relation in flow.layers:
        count = flow.blocks.get(relation.read, 1)
        if relation.read in flow.loose and relation.name in layers:
            found[layers[relation.name]] = (count, relation.columns // count)
    return Heads(found)
