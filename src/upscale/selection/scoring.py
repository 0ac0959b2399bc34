"""Scoring: a criterion's scores for every weight that has a choice, as arrays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.channels import Parameter
from upscale.flow.channel_flow import ChannelFlow
from upscale.model.batches import Batch
from upscale.model.layers import copied
from upscale.recovery.curves import curves_of
from upscale.selection.importance import Study, importance_of, score
from upscale.selection.options import Options
from upscale.subject import Subject

Scores = npt.NDArray[np.float64]


def score_weights(
    subject: Subject, layers: Mapping[str, str], options: Options
) -> dict[str, Scores]:
    """A score for every channel of each weight, by the weight; weights without any are left out.

    `layers` names a layer for each weight. Where layers compete, criteria whose scores mean
    something else in every layer are divided by their mean there: the average channel of each
    layer scores 1.
    """
    if not layers:
        return {}
    model, flow = subject.model, subject.flow
    study = Study(
        # On data it is run, with hooks and in another mode; whoever uses the model sees none of it.
        model=model if options.data is None else copied(model, {}),
        names=tuple(layers.values()),
        side=options.side,
        data=options.data,
        loss=options.loss,
        inputs=len(subject.example.args) or 1,
        norms=partial(norm_scales, model, flow, layers, options.side),
        curves=partial(curve_scores, subject, layers, options.side),
    )
    by_layer = score(options.importance, study)
    scores = {weight: by_layer[name].numpy() for weight, name in layers.items() if name in by_layer}
    if options.scope == "local" or getattr(importance_of(options.importance), "comparable", True):
        return scores
    means = {weight: np.abs(own).sum() / max(1, len(own)) for weight, own in scores.items()}
    return {weight: own / (means[weight] or 1.0) for weight, own in scores.items()}


def norm_scales(
    model: nn.Module, flow: ChannelFlow, layers: Mapping[str, str], side: str
) -> dict[str, Tensor]:
    """For each layer the BatchNorm scales of the channels it reads, or makes.

    A channel that several BatchNorms scale before they are summed has the sum of their scales.
    Layers with a channel that no BatchNorm scales have no entry.
    """
    scales: dict[str, npt.NDArray[np.float64]] = {
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
    carried = flow.carried
    by_layer: dict[str, Tensor] = {}
    for _, relation in flow.layers:
        if relation.name not in layers:
            continue
        line = relation.read if side == "input" else relation.out
        classes = [carried.get(c, c) for c in flow.classes[line].tolist()]
        if all(c in by_class for c in classes):
            groups = relation.groups if side == "input" else 1
            values = torch.tensor([by_class[c] for c in classes], dtype=torch.float64)
            by_layer[layers[relation.name]] = values.reshape(groups, -1).mean(dim=0)
    return by_layer


def curve_scores(
    subject: Subject, layers: Mapping[str, str], side: str, batches: Sequence[Batch]
) -> dict[str, Tensor]:
    """For each layer what the loss of each channel costs after refitting.

    By curves of what layers read. A channel that is made costs what it costs all its readers.
    """
    taken = [Example(batch.args, batch.kwargs) for batch in batches]
    found = curves_of(subject, taken)
    of_weights = {
        weight: found[name].costs for name, weight in subject.weights.items() if name in found
    }
    if side == "input":
        return {name: torch.tensor(of_weights[w]) for w, name in layers.items() if w in of_weights}
    flow = subject.flow
    carried = flow.carried
    by_class: dict[int, float] = defaultdict(float)
    for _, relation in flow.layers:
        known = relation.read in flow.classes and not relation.channelwise
        if known and relation.name in of_weights:
            read = flow.classes[relation.read].tolist()
            costs = of_weights[relation.name] * relation.groups
            for c, cost in zip(read, costs, strict=True):
                by_class[carried.get(c, c)] += cost
    made: dict[str, Tensor] = {}
    for _, relation in flow.layers:
        if relation.name in layers and relation.out in flow.classes:
            classes = [carried.get(c, c) for c in flow.classes[relation.out].tolist()]
            made[layers[relation.name]] = torch.tensor([by_class[c] for c in classes])
    return made
