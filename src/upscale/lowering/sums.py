"""Splitting sums of tensors that lack different channels: only what both have is added.

`z = x + y` on four channels, where `x` is zero at 0 and `y` at 3: channels 1 and 2 are added, and
`z` is a selection: channel 0 of `y`, the sums, channel 3 of `x`. Whoever reads `z` fetches what it
wants from where it lies. Were `y` zero nowhere, putting `z` together would copy as much as filling
zeros into `x`: so zeros are filled in there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from upscale.capture import Call, Captured
from upscale.channels import Flags, derived
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.known import Known
from upscale.flow.lines import Line
from upscale.flow.relations import Pass, Select
from upscale.lowering.lowered import Growing, Lowered
from upscale.ops.table import OPERATIONS

Lacking = tuple[Flags, Flags]


def split_sums(
    lowered: Lowered, captured: Captured, constants: Mapping[Line, Known], way: str
) -> Lowered:
    """Rewrite additions where an operand is zero: there the other is the sum.

    In the way of `"split"`, what both operands have is added and the rest selected, or zeros are
    filled in where one operand has all that the other has; in the way of `"infill"` zeros are
    filled in everywhere. In the way of `"whole"` all that is added has the same channels, computed
    or not: nothing is copied, and only what no operand has can leave.
    """
    if way == "whole":
        return lowered
    growing, adds = Growing(lowered.flow), _additions(captured)
    for step in lowered.flow.steps:
        lacking = _lacking(lowered.flow, step, constants) if step.node in adds else None
        if lacking is None:
            growing.steps.append(step)
            continue
        (relation,) = step.relations
        assert isinstance(relation, Pass)
        one, other = lacking
        nested = not (one & ~other).any() or not (other & ~one).any()
        rewrite = _infill if way == "infill" or nested else _split
        growing.steps += rewrite(growing, step, relation, lacking)
    return replace(lowered, flow=growing.flow())


def _additions(captured: Captured) -> frozenset[str]:
    """The nodes that do nothing but add two tensors of one type."""

    def adds(call: Call) -> bool:
        sizes = {captured.values[value].itemsize for value in (*call.reads, *call.outs)}
        two = len(call.reads) == 2 and len(sizes) == 1
        return two and OPERATIONS[call.op].adds and call.arguments.get("alpha") == 1

    return frozenset(
        name
        for name, observed in captured.observed.items()
        if len(observed.calls) == 1 and adds(observed.calls[0])
    )


def _lacking(flow: ChannelFlow, step: Step, constants: Mapping[Line, Known]) -> Lacking | None:
    """Where each of two summed tensors is zero, if a step sums two and nothing else."""
    (relation, *more) = step.relations or (None,)
    if more or not isinstance(relation, Pass) or len(relation.reads) != 2 or not step.executed:
        return None
    shapes = {flow.shapes[value] for value in (*step.reads, *step.makes)}
    lined = all(line in flow.classes and line not in flow.blocks for line in relation.reads)
    spread = relation.out in flow.grids or relation.out in flow.blocks
    if len(shapes) > 1 or len(step.reads) != 2 or not lined or spread:
        return None
    nowhere = np.zeros(flow.sizes[relation.out], dtype=bool)
    one, other = (constants[r].zero if r in constants else nowhere for r in relation.reads)
    return (one, other) if (one != other).any() else None


def _split(growing: Growing, step: Step, relation: Pass, lacking: Lacking) -> list[Step]:
    """The steps of a sum in which what both operands have is added, and the rest selected."""
    (one, other), operands = lacking, relation.reads
    shared = np.flatnonzero(~one & ~other)
    operand = np.select([one & other, other, one], [-1, 0, 1], default=2)
    position = np.where(operand == 2, np.cumsum(operand == 2) - 1, np.arange(len(operand)))
    position[operand < 0] = -1
    parts = [growing.part(line, derived(line.value, step.node), shared) for line in operands]
    made = growing.part(relation.out, derived(step.node, "both"), shared)
    taking = tuple(
        Select(part, (line,), np.zeros_like(shared), shared)
        for part, line in zip(parts, operands, strict=True)
    )
    names, node = tuple(part.value for part in parts), step.node
    adding = [
        Step(derived(node, "parts"), step.reads, names, taking, executed=False, at=node),
        Step(node, names, (made.value,), (Pass(made, tuple(parts)),), executed=True, at=node),
    ]
    reads = (*operands, made) if len(shared) else operands
    whole = Select(relation.out, reads, operand, position)
    values = tuple(line.value for line in reads)
    last = Step(derived(node, "whole"), values, step.makes, (whole,), executed=False, at=node)
    return [*(adding if len(shared) else ()), last]


def _infill(growing: Growing, step: Step, relation: Pass, lacking: Lacking) -> list[Step]:
    """The steps of a sum of operands with zeros for what they lack."""
    parts, filling = [], []
    for line, lacks in zip(relation.reads, lacking, strict=True):
        part = growing.part(line, derived(line.value, step.node))
        position = np.where(lacks, -1, np.arange(len(lacks)))
        filling.append(Select(part, (line,), np.where(lacks, -1, 0), position))
        parts.append(part)
    names, node = tuple(part.value for part in parts), step.node
    return [
        Step(derived(node, "parts"), step.reads, names, tuple(filling), executed=False, at=node),
        replace(step, reads=names, relations=(Pass(relation.out, tuple(parts)),), at=node),
    ]
