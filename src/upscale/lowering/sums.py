"""Sums of tensors that lack different channels: only what both have is added, or zeros are filled
in first."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from upscale.channels import Flags, Positions
from upscale.errors import PlanError
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.relations import Line, Pass, Select

SUMS = ("split", "infill", "whole")


@dataclass(frozen=True, slots=True)
class Sum:
    """An addition of parts of its operands: their names, in order, and that of what it makes.

    There are none if the operands share no channel; then nothing is added. `whole` is the step
    that puts the sum and the channels of one operand alone together; it is `None` where the
    parts are `infilled`, that is as wide as the sum, with zeros for what an operand lacks.
    `lacking` are the positions at which each operand is zero.
    """

    parts: tuple[str, ...]
    made: str
    whole: str | None
    lacking: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def infilled(self) -> bool:
        """Whether zeros are filled in at run time."""
        return self.whole is None


def split_sums(
    flow: ChannelFlow, nodes: Set[str], zero: Mapping[Line, Flags], way: str
) -> tuple[ChannelFlow, dict[str, Sum]]:
    """The flow with additions rewritten where an operand is zero: there the other is the sum.

    `nodes` are plain additions of two tensors; `zero` tells where lines are zero. In the way of
    `"split"`, what both operands have is added; the result is a selection from that and from the
    operands, so its readers fetch what they want from where it lies. Where one operand has all
    that the other has, putting the sum together would copy as much as filling in zeros for what
    the other lacks, and the parts might have to be gathered too: so that is done there, and
    everywhere in the way of `"infill"`. In the way of `"whole"` all that is added has the same
    channels, computed or not: nothing is copied, and only what no operand has can leave.
    """
    if way not in SUMS:
        raise PlanError(f"sums is {way!r}; it must be one of {', '.join(SUMS)}")
    if way == "whole":
        return flow, {}
    lacking = {
        step.node: found
        for step in flow.steps
        if step.node in nodes and (found := _lacking(flow, step, zero)) is not None
    }
    infilled = {
        node
        for node, (one, other) in lacking.items()
        if way == "infill" or not (one & ~other).any() or not (other & ~one).any()
    }
    return _rewritten(flow, lacking, infilled)


def split_again(flow: ChannelFlow, sums: Mapping[str, Sum]) -> ChannelFlow:
    """The flow with the additions rewritten as a plan has rewritten them."""
    lacking = {}
    for step in flow.steps:
        if step.node in sums:
            (relation,) = step.relations
            assert isinstance(relation, Pass)
            size = flow.sizes[relation.out]
            one, other = (np.isin(np.arange(size), own) for own in sums[step.node].lacking)
            lacking[step.node] = (one, other)
    infilled = {node for node, each in sums.items() if each.infilled}
    return _rewritten(flow, lacking, infilled)[0]


def _rewritten(
    flow: ChannelFlow, lacking: Mapping[str, tuple[Flags, Flags]], infilled: Set[str]
) -> tuple[ChannelFlow, dict[str, Sum]]:
    """The flow with the given additions split, or infilled, for what their operands lack."""
    if not lacking:
        return flow, {}
    steps: list[Step] = []
    sums: dict[str, Sum] = {}
    grown = _Grown(flow)
    for step in flow.steps:
        if step.node not in lacking:
            steps.append(step)
        else:
            rewrite = grown.infill if step.node in infilled else grown.split
            made, sums[step.node] = rewrite(step, *lacking[step.node])
            steps += made
    return grown.flow(tuple(steps)), sums


def _where(flags: Flags) -> tuple[int, ...]:
    return tuple(np.flatnonzero(flags).tolist())


def _lacking(
    flow: ChannelFlow, step: Step, zero: Mapping[Line, Flags]
) -> tuple[Flags, Flags] | None:
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
    one, other = (zero.get(line, nowhere) for line in relation.reads)
    return (one, other) if (one != other).any() else None


class _Grown:
    """A flow that gains values which are parts of others."""

    def __init__(self, flow: ChannelFlow) -> None:
        self._flow = flow
        self._classes, self._shapes = dict(flow.classes), dict(flow.shapes)
        self._nbytes = dict(flow.nbytes)

    def flow(self, steps: tuple[Step, ...]) -> ChannelFlow:
        """The flow with other steps, and all values."""
        return replace(
            self._flow,
            steps=steps,
            classes=self._classes,
            shapes=self._shapes,
            nbytes=self._nbytes,
        )

    def split(self, step: Step, one: Flags, other: Flags) -> tuple[list[Step], Sum]:
        """The steps that replace a sum of tensors which are zero where the flags say."""
        (relation,) = step.relations
        assert isinstance(relation, Pass)
        operands, shared = relation.reads, np.flatnonzero(~one & ~other)
        operand = np.select([one & other, other, one], [-1, 0, 1], default=2)
        position = np.where(operand == 2, np.cumsum(operand == 2) - 1, np.arange(len(operand)))
        position[operand < 0] = -1
        parts = [self._part(line, f"{line.value}~{step.node}", shared) for line in operands]
        made = self._part(relation.out, f"{step.node}~both", shared)
        kept = tuple(
            Select(part, (line,), np.zeros_like(shared), shared)
            for part, line in zip(parts, operands, strict=True)
        )
        values, names = step.reads, tuple(part.value for part in parts)
        putting = f"{step.node}~whole"
        described = Sum(
            names if len(shared) else (),
            made.value,
            putting,
            (_where(one), _where(other)),
        )
        adding = [
            Step(f"{step.node}~parts", values, names, kept, executed=False),
            Step(step.node, names, (made.value,), (Pass(made, tuple(parts)),), executed=True),
        ]
        reads = (*operands, made) if len(shared) else operands
        whole = Select(relation.out, reads, operand, position)
        values = tuple(line.value for line in reads)
        last = Step(putting, values, step.makes, (whole,), executed=False)
        return [*(adding if len(shared) else ()), last], described

    def infill(self, step: Step, one: Flags, other: Flags) -> tuple[list[Step], Sum]:
        """The steps that replace a sum by one of operands with zeros where the flags say."""
        (relation,) = step.relations
        assert isinstance(relation, Pass)
        everything = np.arange(len(one))
        parts, filling = [], []
        for line, lacks in zip(relation.reads, (one, other), strict=True):
            part = self._part(line, f"{line.value}~{step.node}", everything)
            where = np.where(lacks, -1, everything)
            filling.append(Select(part, (line,), np.where(lacks, -1, 0), where))
            parts.append(part)
        names = tuple(part.value for part in parts)
        described = Sum(names, step.makes[0], None, (_where(one), _where(other)))
        return [
            Step(f"{step.node}~parts", step.reads, names, tuple(filling), executed=False),
            replace(step, reads=names, relations=(Pass(relation.out, tuple(parts)),)),
        ], described

    def _part(self, line: Line, name: str, positions: Positions) -> Line:
        """A new value that has some positions of a line."""
        shape = list(self._flow.shapes[line.value])
        weight = self._flow.nbytes[line.value] // max(1, shape[line.axis])
        shape[line.axis] = len(positions)
        self._shapes[name], self._nbytes[name] = tuple(shape), weight * len(positions)
        self._classes[Line(name, line.axis)] = self._flow.classes[line][positions]
        return Line(name, line.axis)
