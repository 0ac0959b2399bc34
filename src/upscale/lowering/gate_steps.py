"""The steps of a gate that is read beside a layer: the layer without it, the small layer, a sum.

`y = bn(conv(x))` with a gate g beside it becomes `y~alone = bn(conv(x))`, `y~added = small(g)` and
`y = y~alone + y~added`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from upscale.channels import positions
from upscale.flow.channel_flow import Step
from upscale.flow.relations import Line, Pass, Reduce
from upscale.lowering.growing import Growing
from upscale.lowering.lowered import Gating, Lowered
from upscale.names import Parameter, derived


def insert_gates(lowered: Lowered, gates: Mapping[str, Gating]) -> Lowered:
    """The lowered flow with small layers that read gates, by the weights they are beside."""
    flow, growing = lowered.flow, Growing(lowered.flow)
    layers = {layer.name: layer for _, layer in flow.layers}
    at = {gating.node: name for name, gating in gates.items()}
    kept, renamed = dict(lowered.kept), dict(lowered.renamed)
    for step in flow.steps:
        if step.node not in at:
            growing.steps.append(step)
            continue
        name, (value,), (relation,) = at[step.node], step.makes, step.relations
        assert isinstance(relation, (Pass, Reduce))
        gating, layer, out = gates[name], layers[name], relation.out
        shape = list(flow.shapes[gating.gate])
        shape[gating.axis] = flow.sizes[out]
        main = growing.part(out, derived(value, "alone"))
        more = growing.line(derived(value, "added"), out, shape, np.arange(flow.sizes[out]))
        ones = [1] * (len(flow.shapes[Parameter(name)]) - 2)
        small = growing.value(
            Parameter(gating.weight), (layer.rows, layer.columns, *ones), growing.item_bytes(value)
        )
        renamed[value] = main.value
        kept[layer.layer] = np.setdiff1d(layer.columns_kept(lowered.kept), gating.columns)
        kept[small] = positions(gating.columns)
        growing.steps += _steps(step, relation, gating, layer, main, more)
    return replace(lowered, flow=growing.flow(), kept=kept, renamed=renamed, gates=gates)


def _steps(
    step: Step, relation: Pass | Reduce, gating: Gating, layer: Reduce, main: Line, more: Line
) -> list[Step]:
    small = Parameter(gating.weight)
    reading = replace(
        layer,
        out=more,
        read=Line(gating.gate, gating.axis),
        layer=small,
        weight=small,
        row_axis=0,
        column_axis=1,
        beside=(),
    )
    return [
        replace(step, makes=(main.value,), relations=(replace(relation, out=main),)),
        Step(
            derived(step.node, "beside"),
            (gating.gate, small),
            (more.value,),
            (reading,),
            executed=True,
            at=step.node,
        ),
        Step(
            derived(step.node, "gated"),
            (main.value, more.value),
            step.makes,
            (Pass(relation.out, (main, more)),),
            executed=True,
            at=step.node,
        ),
    ]
