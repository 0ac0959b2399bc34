"""Gates: what layers read of constants that a gate multiplies, read from the gate itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.relations import Line, Pass, Reduce


@dataclass(frozen=True, slots=True)
class Gating:
    """Columns of a layer's weight that always meet a number times a gate's.

    The layer does not read them. A small layer beside it reads the gate's channels, and what it
    makes of them is added to what `node` makes: the layer's own, or that of the BatchNorm behind
    it, by whose scale it is multiplied then.
    """

    layer: str
    columns: tuple[int, ...]
    gate: str
    axis: int
    node: str
    norm: str | None

    @property
    def beside(self) -> str:
        """The step that is the small layer."""
        return f"{self.node}~beside"

    @property
    def adding(self) -> str:
        """The step that adds what the small layer makes."""
        return f"{self.node}~gated"


def gated_weight(weight: str) -> str:
    """The name of the weight with which a layer's gate is read."""
    return f"{weight}~gated"


def alone(value: str) -> str:
    """The name of a value without what the gate adds to it."""
    return f"{value}~alone"


def added(value: str) -> str:
    """The name of what the gate adds to a value."""
    return f"{value}~added"


def columns_read(gated: Mapping[str, Gating]) -> dict[str, Positions]:
    """The columns that the weights of small layers keep, by their values' names."""
    return {
        f"@{gated_weight(weight)}": np.array(gating.columns, dtype=np.int64)
        for weight, gating in gated.items()
    }


def read_gates(flow: ChannelFlow, gated: Mapping[str, Gating]) -> ChannelFlow:
    """The flow with small layers that read gates, by the weights of the layers they are beside."""
    if not gated:
        return flow
    steps: list[Step] = []
    classes, shapes, nbytes = dict(flow.classes), dict(flow.shapes), dict(flow.nbytes)
    layers = {gating.node: (weight, gating) for weight, gating in gated.items()}
    reductions = {
        relation.layer[1:]: relation
        for step in flow.steps
        for relation in step.relations
        if isinstance(relation, Reduce)
    }
    for step in flow.steps:
        if step.node not in layers:
            steps.append(step)
            continue
        weight, gating = layers[step.node]
        (relation,) = step.relations
        assert isinstance(relation, (Pass, Reduce))
        out, (value,) = relation.out, step.makes
        main, more = Line(alone(value), out.axis), Line(added(value), out.axis)
        small, gate = f"@{gated_weight(weight)}", Line(gating.gate, gating.axis)
        layer = reductions[weight]
        item = flow.nbytes[value] // max(1, int(np.prod(flow.shapes[value])))
        shapes[main.value], nbytes[main.value] = flow.shapes[value], flow.nbytes[value]
        shape = list(flow.shapes[gating.gate])
        shape[gating.axis] = flow.sizes[out]
        shapes[more.value], nbytes[more.value] = tuple(shape), item * int(np.prod(shape))
        shapes[small] = (layer.rows, layer.columns, *[1] * (len(flow.shapes[f"@{weight}"]) - 2))
        nbytes[small] = item * layer.rows * layer.columns
        classes[main] = classes[more] = flow.classes[out]
        reading = replace(
            layer,
            out=more,
            read=gate,
            layer=small,
            weight=small,
            row_axis=0,
            column_axis=1,
            beside=(),
        )
        steps += [
            replace(step, makes=(main.value,), relations=(replace(relation, out=main),)),
            Step(gating.beside, (gating.gate, small), (more.value,), (reading,), executed=True),
            Step(
                gating.adding,
                (main.value, more.value),
                step.makes,
                (Pass(out, (main, more)),),
                executed=True,
            ),
        ]
    return replace(flow, steps=tuple(steps), classes=classes, shapes=shapes, nbytes=nbytes)
