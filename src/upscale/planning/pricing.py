"""Pricing: what fetching and computing channels would cost on a target, in nanoseconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from upscale.flow.domain import GRID, ChannelFlow, Line, Reduce
from upscale.target import CopyCosts, Costs, Target

# What a gather must save where runs are concatenated anyway and each lies in one stretch: then only
# starts are saved, and how much those cost differs most from runtime to runtime.
WORTH_A_GATHER = 100_000.0
# Estimates are no better than this, in nanoseconds: what saves less is not worth reading or making
# a channel more.
WORTH_IT = 10_000.0


@dataclass(frozen=True, slots=True)
class Part:
    """Channels that are fetched from one line: how many, and in how many runs they lie."""

    line: Line
    channels: int
    runs: int


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
        return self.scale * flow.nbytes[line.value] / max(1, flow.size(line))

    def is_inner(self, flow: ChannelFlow, line: Line) -> bool:
        """Whether a line's channels lie side by side in memory."""
        return line.axis != GRID and self.target.is_inner(line.axis, len(flow.shapes[line.value]))

    def gathers_rows(self, flow: ChannelFlow, line: Line) -> bool:
        """Whether to gather from a line as from a matrix with a row for each place."""
        return self.is_inner(flow, line) and len(flow.shapes[line.value]) > 2

    def _ways(self, flow: ChannelFlow, line: Line) -> CopyCosts:
        return self.costs.inner if self.is_inner(flow, line) else self.costs.outer

    def _rows(self, flow: ChannelFlow, line: Line) -> float:
        """Over how many stretches of memory a run of a line's channels is spread."""
        if self.is_inner(flow, line):
            return self.channel_bytes(flow, line) / self.target.item_bytes
        return self.target.batch * math.prod(flow.shapes[line.value][1 : max(1, line.axis)])

    def _written(self, flow: ChannelFlow, part: Part) -> float:
        """The bytes of a part."""
        return part.channels * self.channel_bytes(flow, part.line)

    def _slice(self, flow: ChannelFlow, part: Part) -> float:
        """Reading a slice: free where it is one stretch of memory."""
        if self._rows(flow, part.line) <= 1:
            return 0.0
        return self._written(flow, part) * self._ways(flow, part.line).slice_byte

    def _joining(self, flow: ChannelFlow, part: Part, runs: int) -> float:
        """What runs add to a concatenation."""
        row = self._ways(flow, part.line).run_row
        return runs * (self._rows(flow, part.line) * row + self.costs.piece)

    def _gather(self, flow: ChannelFlow, part: Part) -> float:
        """Gathering channels one by one."""
        byte = self._ways(flow, part.line).gather_byte
        return self._written(flow, part) * byte + self.costs.call

    def _concatenating(self, flow: ChannelFlow, part: Part) -> float:
        """What a concatenation writes of a part, but for its runs."""
        return self._written(flow, part) * self._ways(flow, part.line).run_byte

    def pays_to_gather(self, flow: ChannelFlow, part: Part, *, joined: bool) -> bool:
        """Whether a gather is cheaper than a concatenation of runs.

        In one that is made anyway, what a gather copies is copied again.
        """
        apart, least = self._joining(flow, part, part.runs), WORTH_IT
        beside = self._joining(flow, part, 1)
        if not joined:
            apart, beside = apart + self._concatenating(flow, part) + self.costs.call, 0.0
        elif not self.is_inner(flow, part.line):
            least = WORTH_A_GATHER
        return part.runs > 1 and self._gather(flow, part) + beside + least < apart

    def fetch(self, flow: ChannelFlow, parts: Sequence[Part], *, joined: bool) -> float:
        """Fetching parts, each as it pays; `joined`, they are concatenated anyway."""
        joined = joined or len(parts) > 1
        if not joined and parts[0].runs < 2:
            return self._slice(flow, parts[0])
        total, gathers = 0.0, 0
        for part in parts:
            runs = part.runs
            if self.pays_to_gather(flow, part, joined=joined):
                total, runs, gathers = total + self._gather(flow, part), 1, gathers + 1
            total += self._concatenating(flow, part) + self._joining(flow, part, runs)
        if gathers == 1 and not joined:
            return self._gather(flow, parts[0])
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
