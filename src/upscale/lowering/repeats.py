"""Repeating constants: of channels that hold the same number, one is computed and read for all.

A gate's sigmoid of three masked channels is 0.5 three times: one of them is computed, and whoever
wants another reads that one. Reading one channel for several copies it, which is cheap where a
channel is one number: of tensors without extent in space, such as gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from upscale.channels import Positions, derived
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.known import Known
from upscale.flow.lines import GRID, Line
from upscale.flow.relations import Pass, Select
from upscale.lowering.lowered import Growing, Lowered


def repeat_constants(lowered: Lowered, constants: Mapping[Line, Known]) -> Lowered:
    """Compute equal constants once. Zeros are left alone; what they meet leaves or is not added."""
    growing, renamed = Growing(lowered.flow), dict(lowered.renamed)
    for step in lowered.flow.steps:
        relation = step.relations[0] if len(step.relations) == 1 else None
        if not isinstance(relation, Pass) or not _repeatable(lowered.flow, step, relation):
            growing.steps.append(step)
            continue
        first = _first_equal(constants, relation.out)
        borrowed = first != np.arange(len(first))
        if not borrowed.any():
            growing.steps.append(step)
            continue
        (value,) = step.makes
        once = growing.part(relation.out, derived(value, "once"))
        if step.at is None:
            renamed[value] = once.value
        select = Select(relation.out, (once,), np.zeros_like(first), first, borrowed=borrowed)
        resize = tuple(once if line == relation.out else line for line in step.resize)
        made = (replace(relation, out=once),)
        growing.steps += [
            replace(step, makes=(once.value,), relations=made, resize=resize),
            Step(
                derived(step.node, "repeated"), (once.value,), (value,), (select,), executed=False
            ),
        ]
    return replace(lowered, flow=growing.flow(), renamed=renamed)


def _repeatable(flow: ChannelFlow, step: Step, relation: Pass) -> bool:
    """Whether a step makes one tensor, of one number for each channel of each image."""
    out = relation.out
    if len(step.makes) != 1 or not step.executed or relation.whole or out.axis == GRID:
        return False
    extent = [s for axis, s in enumerate(flow.shapes[out.value]) if axis not in (0, out.axis)]
    spread = out in flow.grids or out in flow.blocks or len(flow.lines.get(out.value, ())) > 1
    return out.axis > 0 and not spread and all(size == 1 for size in extent)


def _first_equal(constants: Mapping[Line, Known], line: Line) -> Positions:
    """For each position the first that always holds the same number; itself where there is none."""
    if line not in constants:
        return np.empty(0, dtype=np.int64)
    numbers = constants[line].firm_numbers
    first = np.arange(len(numbers))
    for number in np.unique(numbers[~np.isnan(numbers) & (numbers != 0)]):
        same = np.flatnonzero(numbers == number)
        first[same] = same[0]
    return first
