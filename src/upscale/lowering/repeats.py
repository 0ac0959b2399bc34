"""Repeats: of channels that always hold the same number, one is computed and read for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.relations import GRID, Line, Pass, Select


def repeat_constants(
    flow: ChannelFlow, numbers: Mapping[Line, npt.NDArray[np.float64]]
) -> tuple[ChannelFlow, dict[str, tuple[int, ...]]]:
    """The flow with equal constants computed once, and where each position is read instead.

    `numbers` are those that positions of lines hold, NaN where they hold none. Reading one
    channel for several copies it, which is cheap where a channel is one number: of tensors
    without extent in space, such as gates. Zeros are left alone; what they meet leaves or is
    not added.
    """
    repeats = {}
    for step in flow.steps:
        relation = step.relations[0] if len(step.relations) == 1 else None
        if isinstance(relation, Pass) and relation.out in numbers and _repeatable(flow, step):
            first = _first_equal(numbers[relation.out])
            if (first != np.arange(len(first))).any():
                repeats[step.makes[0]] = tuple(first.tolist())
    return repeat_again(flow, repeats), repeats


def repeat_again(flow: ChannelFlow, repeats: Mapping[str, tuple[int, ...]]) -> ChannelFlow:
    """The flow with the repeats that a plan has: by value, the position read for each."""
    if not repeats:
        return flow
    steps: list[Step] = []
    classes, shapes, nbytes = dict(flow.classes), dict(flow.shapes), dict(flow.nbytes)
    for step in flow.steps:
        value = step.makes[0] if len(step.makes) == 1 else ""
        if value not in repeats:
            steps.append(step)
            continue
        (relation,) = step.relations
        assert isinstance(relation, Pass)
        name, position = computed_once(value), np.array(repeats[value], dtype=np.int64)
        once = Line(name, relation.out.axis)
        classes[once], shapes[name], nbytes[name] = (
            flow.classes[relation.out],
            flow.shapes[value],
            flow.nbytes[value],
        )
        select = Select(relation.out, (once,), np.zeros_like(position), position)
        resize = tuple(once if line == relation.out else line for line in step.resize)
        made = replace(relation, out=once)
        steps += [
            replace(step, makes=(name,), relations=(made,), resize=resize),
            Step(f"{step.node}~repeated", (name,), (value,), (select,), executed=False),
        ]
    return replace(flow, steps=tuple(steps), classes=classes, shapes=shapes, nbytes=nbytes)


def computed_once(value: str) -> str:
    """The name of what is computed of a value whose channels are repeated."""
    return f"{value}~once"


def _repeatable(flow: ChannelFlow, step: Step) -> bool:
    """Whether a step makes one tensor, of one number for each channel of each image."""
    (relation,) = step.relations
    assert isinstance(relation, Pass)
    out = relation.out
    if len(step.makes) != 1 or not step.executed or relation.whole or out.axis == GRID:
        return False
    extent = [s for axis, s in enumerate(flow.shapes[out.value]) if axis not in (0, out.axis)]
    spread = out in flow.grids or out in flow.blocks or len(flow.lines.get(out.value, ())) > 1
    return out.axis > 0 and not spread and all(size == 1 for size in extent)


def _first_equal(numbers: npt.NDArray[np.float64]) -> Positions:
    """For each position the first that holds the same number; itself where there is none."""
    first = np.arange(len(numbers))
    for number in np.unique(numbers[~np.isnan(numbers) & (numbers != 0)]):
        same = np.flatnonzero(numbers == number)
        first[same] = same[0]
    return first
