"""Reading gates: columns that always meet a number times a gate are read from the gate itself.

In a squeeze-and-excitation block a masked channel is a constant c, which the gate multiplies with
one number g for each image: c·g everywhere. A layer that does not pad it adds the same at every
place, and a layer as small as the gate makes that: c times the column, applied to g. It is done
where nothing else needs the constant channel then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from upscale.capture import Call, Captured
from upscale.channels import Parameter, derived, positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.known import Known, Numbers
from upscale.flow.lines import Line
from upscale.flow.liveness import find_live
from upscale.flow.relations import Pass, Reduce
from upscale.lowering.constants import OTHER_WEIGHTS
from upscale.lowering.lowered import Gating, Growing, Lowered
from upscale.model.layers import KINDS, computes_weight, stock_class
from upscale.ops.layers import pads
from upscale.ops.pointwise import drops
from upscale.ops.table import OPERATIONS


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A line that is, at every place, a number times the gate's at the same position.

    The gate has one number for each position of each image; `numbers` are those of the
    `factor`, the line that it is multiplied with, NaN where that has none. A gate is `spread`
    if what it is multiplied with has more places than one on the example.
    """

    gate: Line
    factor: Line
    numbers: Numbers
    spread: bool


def find_scaled(
    captured: Captured, flow: ChannelFlow, constants: Mapping[Line, Known]
) -> dict[Line, tuple[Scaled, ...]]:
    """The lines whose constants are multiplied with a gate, and by each of which gates.

    Which lines these are depends on where constants are, not on their numbers.
    """
    expanded: dict[Line, Line] = {}
    found: dict[Line, tuple[Scaled, ...]] = {}

    def aligned(*lines: Line) -> bool:
        """Whether lines lie along one axis of tensors with equally many, of one type."""
        given = [captured.values[line.value] for line in lines]
        kinds = {(len(info.shape), info.itemsize) for info in given}
        return len(kinds) == len({line.axis for line in lines}) == 1

    for step, relation in flow.passes if constants else ():
        if relation.whole:
            continue
        out, call = relation.out, captured.observed[step.node].making(relation.out.value)
        operation = OPERATIONS[call.op]
        if operation.broadcasts and aligned(out, *relation.reads):
            expanded[out] = relation.reads[0]
        elif operation.multiplies and len(relation.reads) == len(call.reads) == 2:
            ways = ((one, expanded.get(gate, gate)) for one, gate in permutations(relation.reads))
            spread = _places(flow, out) > 1
            found[out] = tuple(
                Scaled(gate, factor, constants[factor].numbers, spread)
                for factor, gate in ways
                if factor in constants and aligned(out, factor, gate) and _is_gate(flow, gate)
            )
        elif operation.hands_on and not drops(call) and len(relation.reads) == 1:
            found[out] = found.get(relation.reads[0], ())
    return found


def _places(flow: ChannelFlow, line: Line) -> int:
    """How many places an image has in a line's tensor."""
    shape = flow.shapes[line.value]
    return int(np.prod([size for axis, size in enumerate(shape) if axis not in (0, line.axis)]))


def _is_gate(flow: ChannelFlow, line: Line) -> bool:
    """Whether a line has one place, and other nodes can read any part of it.

    What a node makes for itself cannot be read by another.
    """
    given = line.value in flow.made and line in flow.classes
    return given and line.axis > 0 and line not in flow.blocks and _places(flow, line) == 1


def read_gates(
    lowered: Lowered, model: nn.Module, captured: Captured, constants: Mapping[Line, Known]
) -> Lowered:
    """Let small layers read gates wherever that spares a channel."""
    chances = list(_chances(lowered, model, captured, constants))
    if not chances:
        return lowered
    tried = insert_gates(lowered, {name: gating for name, gating, _ in chances})
    live = find_live(tried.flow, tried.kept)
    spared = {}
    for name, gating, factor in chances:
        columns = np.array(gating.columns)
        columns = columns[~live.lines[factor][columns]]
        if len(columns):
            spared[name] = replace(gating, columns=tuple(columns.tolist()))
    return insert_gates(lowered, spared)


def _chances(
    lowered: Lowered, model: nn.Module, captured: Captured, constants: Mapping[Line, Known]
) -> Iterator[tuple[str, Gating, Line]]:
    """What could be done, whether or not it spares anything: the layer's weight, the gating, and
    the line whose channels it would spare."""
    flow = lowered.flow
    scaled = find_scaled(captured, flow, constants)
    for step, layer in flow.layers:
        ways = [way for way in scaled.get(layer.read, ()) if way.spread]
        if not ways or not _is_plain(flow, model, step, layer):
            continue
        # The columns it keeps that meet a multiple of the gate, and no constant.
        kept, known = layer.columns_kept(lowered.kept), constants.get(layer.read)
        varying = np.ones(flow.sizes[layer.read], dtype=bool) if known is None else ~known.constant
        met = [kept[(varying & ~np.isnan(way.numbers))[kept]] for way in ways]
        way, columns = max(zip(ways, met, strict=True), key=lambda each: len(each[1]))
        call = captured.observed[step.node].making(layer.out.value)
        if len(columns) and _is_even(flow, layer, call):
            norm = _norm_behind(flow, model, captured, layer.out)
            gating = Gating(
                layer=str(step.module),
                columns=tuple(columns.tolist()),
                gate=way.gate.value,
                axis=way.gate.axis,
                node=(norm or step).node,
                norm=None if norm is None else norm.module,
                weight=derived(layer.name, "gated"),
            )
            yield layer.name, gating, way.factor


def _is_plain(flow: ChannelFlow, model: nn.Module, step: Step, relation: Reduce) -> bool:
    """Whether a step is one layer that alone has its weight, and whose tensor is one line's."""
    layer = None if step.module is None else model.get_submodule(step.module)
    return (
        isinstance(layer, KINDS)
        and not computes_weight(layer)
        and not layer._forward_hooks
        and relation.groups == 1
        and relation.weight == relation.layer
        and flow.uses[relation.weight] == 1
        and len(step.relations) == len(step.makes) == 1
        and relation.out in flow.classes
    )


def _is_even(flow: ChannelFlow, layer: Reduce, call: Call) -> bool:
    """Whether what a layer makes of a number that is the same at all places is the same too.

    A layer that looks at one place at a time may meet anything. Where others read what has
    no extent on the example, it may have one on another image, and the gate too.
    """
    if pads(call):
        return False
    area = int(np.prod(flow.shapes[layer.weight][2:]))
    stride = call.arguments.get("stride")  # a linear layer has none
    if area == 1 and (stride is None or np.all(np.equal(stride, 1))):
        return True
    shape = flow.shapes[layer.read.value]
    return all(size > 1 for size in shape[layer.read.axis + 1 :])


def _norm_behind(
    flow: ChannelFlow, model: nn.Module, captured: Captured, line: Line
) -> Step | None:
    """The BatchNorm that alone reads a line and only scales and shifts it.

    What is added behind it leaves it next to its layer, into which it can be folded.
    """
    readers = [(step, each) for step, each in flow.passes if line in each.reads]
    if flow.uses[line.value] != 1 or len(readers) != 1:
        return None
    ((step, relation),) = readers
    if step.module is None or len(step.relations) > 1 or len(step.makes) > 1:
        return None
    norm = model.get_submodule(step.module)
    call = captured.observed[step.node].making(relation.out.value)
    scales = OPERATIONS[call.op].normalises and not call.arguments.get("training")
    own = isinstance(norm, _BatchNorm) and norm.running_var is not None
    plain = stock_class(norm) is not None and not norm._forward_hooks
    return step if scales and own and plain and relation.out.axis == line.axis else None


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
