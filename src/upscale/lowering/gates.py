"""Reading gates: columns that always meet a number times a gate are read from the gate itself.

In a squeeze-and-excitation block a masked channel is a constant c, which the gate multiplies with
one number g for each image: c·g everywhere. A layer that does not pad it adds the same at every
place, and a layer as small as the gate makes that: c times the column, applied to g. It is done
where nothing else needs the constant channel then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from upscale.capture import Call, Captured
from upscale.channels import Positions, positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.known import Known
from upscale.flow.liveness import find_live
from upscale.flow.relations import Line, Pass, Reduce
from upscale.lowering.folds import OTHER_WEIGHTS
from upscale.lowering.lowered import Gating, Growing, Lowered
from upscale.lowering.scaled import Scaled, find_scaled
from upscale.model.layers import KINDS, computes_weight, stock_class
from upscale.names import Parameter, derived
from upscale.ops.layers import pads
from upscale.ops.table import OPERATIONS


@dataclass(frozen=True, slots=True, eq=False)
class _Chance:
    """Columns that a gate might be read for, and what they would spare: those of the factor."""

    gating: Gating
    factor: Line


def read_gates(
    lowered: Lowered, model: nn.Module, captured: Captured, constants: Mapping[Line, Known]
) -> Lowered:
    """Let small layers read gates wherever that spares a channel."""
    chances = dict(_Finder(lowered, model, captured, constants).chances())
    if not chances:
        return lowered
    tried = insert_gates(lowered, {name: chance.gating for name, chance in chances.items()})
    live = find_live(tried.flow, tried.kept)
    spared = {}
    for name, chance in chances.items():
        columns = np.array(chance.gating.columns)
        columns = columns[~live.lines[chance.factor][columns]]
        if len(columns):
            spared[name] = replace(chance.gating, columns=tuple(columns.tolist()))
    return insert_gates(lowered, spared)


class _Finder:
    def __init__(
        self,
        lowered: Lowered,
        model: nn.Module,
        captured: Captured,
        constants: Mapping[Line, Known],
    ) -> None:
        self._model, self._captured, self._flow = model, captured, lowered.flow
        self._constants, self._kept = constants, lowered.kept
        self._scaled = find_scaled(captured, lowered.flow, constants)
        self._uses = Counter(value for step in lowered.flow.steps for value in step.reads)
        self._readers = {
            line.value: step
            for step in lowered.flow.steps
            for relation in step.relations
            for line in relation.reads
        }

    def chances(self) -> Iterator[tuple[str, _Chance]]:
        """What could be done, whether or not it spares anything, by the layers' weights."""
        for step, layer in self._flow.layers:
            ways = [way for way in self._scaled.get(layer.read, ()) if way.spread]
            if ways and self._is_plain(step, layer):
                scaled, columns = max(
                    ((way, self._columns(layer, way)) for way in ways),
                    key=lambda way: len(way[1]),
                )
                if len(columns) and self._is_even(step, layer):
                    gating = self._gating(step, layer, scaled, columns)
                    yield layer.name, _Chance(gating, scaled.factor)

    def _columns(self, layer: Reduce, scaled: Scaled) -> Positions:
        """The columns a layer keeps that meet a multiple of the gate, and no constant."""
        columns = layer.columns_kept(self._kept)
        known = self._constants.get(layer.read)
        multiple = ~np.isnan(scaled.numbers)
        return columns[(multiple if known is None else multiple & ~known.constant)[columns]]

    def _is_plain(self, step: Step, relation: Reduce) -> bool:
        """Whether a step is one layer that alone has its weight, and whose tensor is one line's."""
        layer = None if step.module is None else self._model.get_submodule(step.module)
        return (
            isinstance(layer, KINDS)
            and not computes_weight(layer)
            and not layer._forward_hooks
            and relation.groups == 1
            and relation.weight == relation.layer
            and self._uses[relation.weight] == 1
            and len(step.relations) == len(step.makes) == 1
            and relation.out in self._flow.classes
        )

    def _is_even(self, step: Step, layer: Reduce) -> bool:
        """Whether what a layer makes of a number that is the same at all places is the same too.

        A layer that looks at one place at a time may meet anything. Where others read what has
        no extent on the example, it may have one on another image, and the gate too.
        """
        call = self._call(step, layer.out)
        if pads(call):
            return False
        area = int(np.prod(self._flow.shapes[layer.weight][2:]))
        stride = call.arguments.get("stride")  # a linear layer has none
        if area == 1 and (stride is None or np.all(np.equal(stride, 1))):
            return True
        shape = self._flow.shapes[layer.read.value]
        return all(size > 1 for size in shape[layer.read.axis + 1 :])

    def _call(self, step: Step, line: Line) -> Call:
        return self._captured.observed[step.node].making(line.value)

    def _gating(self, step: Step, layer: Reduce, scaled: Scaled, columns: Positions) -> Gating:
        norm = self._norm_behind(layer.out)
        return Gating(
            layer=str(step.module),
            columns=tuple(columns.tolist()),
            gate=scaled.gate.value,
            axis=scaled.gate.axis,
            node=(norm or step).node,
            norm=None if norm is None else norm.module,
            weight=derived(layer.name, "gated"),
        )

    def _norm_behind(self, line: Line) -> Step | None:
        """The BatchNorm that alone reads a line and only scales and shifts it.

        What is added behind it leaves it next to its layer, into which it can be folded.
        """
        step = self._readers.get(line.value)
        if step is None or self._uses[line.value] != 1 or step.module is None:
            return None
        norm, (relation, *more) = self._model.get_submodule(step.module), step.relations
        if more or len(step.makes) > 1 or not isinstance(relation, Pass):
            return None
        call = self._call(step, relation.out)
        scales = OPERATIONS[call.op].normalises and not call.arguments.get("training")
        own = isinstance(norm, _BatchNorm) and norm.running_var is not None
        stock = stock_class(norm) is not None
        plain = stock and not norm._forward_hooks and relation.out.axis == line.axis
        return step if scales and own and plain else None


def factors_met(
    captured: Captured,
    flow: ChannelFlow,
    constants: Mapping[Line, Known],
    gates: Mapping[str, Gating],
) -> dict[str, tuple[float, ...]]:
    """The numbers that gates are multiplied with for each weight's columns, as they now are."""
    scaled = find_scaled(captured, flow, constants) if gates else {}
    factors = {}
    for _, layer in flow.layers:
        gating = gates.get(layer.name)
        if gating is not None:
            gate = Line(gating.gate, gating.axis)
            ways = [way for way in scaled.get(layer.read, ()) if way.gate == gate]
            numbers = ways[0].numbers[list(gating.columns)].tolist() if ways else [float("nan")]
            if any(number != number for number in numbers):
                raise PlanError(OTHER_WEIGHTS.format(layer.name))
            factors[gating.weight] = tuple(numbers)
    return factors


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
