"""Pricing: what fetching and computing channels would cost on a target, in nanoseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.relations import GRID, Line, Reduce
from upscale.targets.target import Costs, Target

# What a gather must save where runs are concatenated anyway and each lies in one stretch: then only
# starts are saved, and how much those cost differs most from runtime to runtime.
WORTH_A_GATHER = 100_000.0
# Estimates are no better than this, in nanoseconds: what saves less is not worth reading or making
# a channel more.
WORTH_IT = 10_000.0


@dataclass(frozen=True, slots=True)
class Rates:
    """What copies from a line cost: by channel, and by run of channels that is concatenated."""

    slice: float
    join: float
    concatenate: float
    gather: float
    run: float
    inner: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Channels that are fetched from one line: how many, in how many runs they lie, and whether
    they are all that it holds."""

    rates: Rates
    channels: int
    runs: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Pricing:
    """A target and its costs; `scale` is its batch over that of the example."""

    target: Target
    costs: Costs
    scale: float = 1.0

    @property
    def has_tails(self) -> bool:
        """Whether convolutions take longer for outputs beyond whole blocks."""
        return self.target.memory_format == "channels_last"

    def channel_bytes(self, flow: ChannelFlow, line: Line) -> float:
        """What one channel of a line weighs."""
        return self.scale * flow.nbytes[line.value] / max(1, flow.sizes[line])

    def is_inner(self, flow: ChannelFlow, line: Line) -> bool:
        """Whether a line's channels lie side by side in memory."""
        return line.axis != GRID and self.target.is_inner(line.axis, len(flow.shapes[line.value]))

    def gathers_rows(self, flow: ChannelFlow, line: Line) -> bool:
        """Whether to gather from a line as from a matrix with a row for each place."""
        return self.is_inner(flow, line) and len(flow.shapes[line.value]) > 2

    def rates(self, flow: ChannelFlow, line: Line) -> Rates:
        """What copies from a line cost."""
        inner, weight = self.is_inner(flow, line), self.channel_bytes(flow, line)
        ways = self.costs.inner if inner else self.costs.outer
        # Over how many stretches of memory a run of channels is spread.
        if inner:
            rows = weight / self.target.item_bytes
        else:
            rows = self.target.batch * math.prod(flow.shapes[line.value][1 : max(1, line.axis)])
        return Rates(
            slice=0.0 if rows <= 1 else weight * ways.slice_byte,
            join=weight * ways.join_byte,
            concatenate=weight * ways.run_byte,
            gather=weight * ways.gather_byte,
            run=rows * ways.run_row + self.costs.piece,
            inner=inner,
        )

    def _gather(self, part: Part) -> float:
        """Gathering channels one by one."""
        return part.channels * part.rates.gather + self.costs.call

    def pays_to_gather(self, part: Part, *, joined: bool) -> bool:
        """Whether a gather is cheaper than a concatenation of runs.

        In one that is made anyway, what a gather copies is copied again.
        """
        if part.runs < 2:
            return False
        rates, least = part.rates, WORTH_IT
        apart, beside = part.runs * rates.run, rates.run
        if not joined:
            apart += part.channels * rates.concatenate + self.costs.call
            beside = 0.0
        elif not rates.inner:
            least = WORTH_A_GATHER
        return self._gather(part) + beside + least < apart

    def fetch(self, parts: Sequence[Part], *, joined: bool) -> float:
        """Fetching parts, each as it pays; `joined`, they are concatenated anyway."""
        joined = joined or len(parts) > 1
        if not joined and parts[0].runs < 2:
            return parts[0].channels * parts[0].rates.slice
        if all(part.whole and part.runs == 1 for part in parts):
            return sum(part.channels * part.rates.join for part in parts) + self.costs.call
        total, gathers = 0.0, 0
        for part in parts:
            runs = part.runs
            if self.pays_to_gather(part, joined=joined):
                total, runs, gathers = total + self._gather(part), 1, gathers + 1
            total += part.channels * part.rates.concatenate + runs * part.rates.run
        if gathers == 1 and not joined:
            return self._gather(parts[0])
        return total + self.costs.call

    def layer(self, flow: ChannelFlow, relation: Reduce, columns: int, rows: int) -> float:
        """Running a layer that reads so many columns and makes so many rows."""
        area = math.prod(flow.shapes[relation.weight][2:])
        places = self.channel_bytes(flow, relation.out) / self.target.item_bytes
        weight = columns * rows * area * self.target.item_bytes * self.costs.weight_byte
        if relation.channelwise:
            rows = _up(rows, self.block(flow, relation))
            return rows * area * places * self.costs.channelwise_mac + self.costs.call
        effort = float(rows)
        if relation.groups == 1 and self.block(flow, relation) > 1:
            if self.is_inner(flow, relation.out):
                rest = rows % self.costs.block
                effort += rest * (self.costs.tail * self.costs.block - 1)
            elif area > 1:
                effort, columns = _up(rows, self.costs.block), _up(columns, self.costs.block)
        return columns * effort * area * places * self.costs.mac + weight + self.costs.call

    def block(self, flow: ChannelFlow, relation: Reduce) -> int:
        """How many channels a layer makes at once."""
        return self.costs.block if len(flow.shapes[relation.weight]) > 2 else 1

    def passing(self, flow: ChannelFlow, line: Line, channels: int) -> float:
        """Running an elementwise operation that makes so many channels."""
        return channels * self.channel_bytes(flow, line) * self.costs.pass_byte + self.costs.call


def _up(count: int, block: int) -> int:
    return -(-count // block) * block
