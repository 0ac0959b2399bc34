"""Targets: where an export will run, and what reads and layers would take there, in nanoseconds.

Say a tensor holds channels 0 to 9, each of 1,000 bytes, and a layer wants 0, 1, 2, 5, 6 and 9:

    0 1 2 . . 5 6 . . 9     three runs

By runs it copies 6,000 bytes at `run_byte`, and pays a `piece` and a `run_row` for each of the
three, and one `call`. Gathered, it copies them at `gather_byte`, for one `call`. Widened it reads
0 to 9 as they are and copies nothing, but multiplies ten channels instead of six: more `mac`.

While a plan is written its work is noted as plain data; `Pricing.price` adds up all of it at once.
No torch.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from upscale.errors import TargetError
from upscale.flow.channel_flow import ChannelFlow
from upscale.flow.lines import GRID, Line
from upscale.flow.relations import Reduce
from upscale.targets.prices import WORTH_A_GATHER, WORTH_IT, Prices

# Every runtime is a module, `on_NAME.py` in this folder, which `runtime_of` imports when somebody
# asks for it. A runtime that lives elsewhere is one more entry: RUNTIMES["mine"] = "my.module".
RUNTIMES = {
    module.name.removeprefix("on_"): f"upscale.targets.{module.name}"
    for module in pkgutil.iter_modules([str(Path(__file__).parent)])
    if module.name.startswith("on_")
}
FORMATS = ("contiguous", "channels_last")
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class Target:
    """Where an export will run: runtime, device, memory format, batch, threads and dtype.

    >>> Target(memory_format="channels_last", batch=8).item_bytes
    4
    """

    runtime: str = "torch"
    device: str = "cpu"
    memory_format: str = "contiguous"
    batch: int = 1
    threads: int = 1
    dtype: str = "float32"

    def __post_init__(self) -> None:
        choices = {"runtime": RUNTIMES, "memory_format": FORMATS, "dtype": ITEM_BYTES}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in tuple(known):
                raise TargetError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
        for name in ("batch", "threads"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise TargetError(f"{name} is {value!r}; it must be a whole number >= 1")

    @property
    def item_bytes(self) -> int:
        """What one number weighs."""
        return ITEM_BYTES[self.dtype]

    def is_inner(self, axis: int, rank: int) -> bool:
        """Whether the numbers along an axis of a tensor lie side by side in memory."""
        return axis == rank - 1 or (
            self.memory_format == "channels_last" and axis == 1 and rank in (4, 5)
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """What copies from a line cost: by channel, and by run of channels that is concatenated; and
    what a slice costs to start."""

    slice: float
    cut: float
    join: float
    concatenate: float
    gather: float
    run: float
    inner: bool


@dataclass(frozen=True, slots=True)
class Fetched:
    """Channels that are fetched from one line: how many, in how many runs they lie, and whether
    they are all that it holds."""

    line: Line
    channels: int
    runs: int
    whole: bool


@dataclass(frozen=True, slots=True)
class LayerWork:
    """A layer that reads so many columns and makes so many rows."""

    relation: Reduce
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class PassWork:
    """An elementwise operation that makes so many channels."""

    line: Line
    channels: int


@dataclass(frozen=True, slots=True)
class FetchWork:
    """Parts that one read puts together; `joined`, they are concatenated anyway."""

    parts: tuple[Fetched, ...]
    joined: bool


Work = LayerWork | PassWork | FetchWork


@dataclass(frozen=True, slots=True)
class Pricing:
    """A target and its prices; `scale` is its batch over that of the example."""

    target: Target
    prices: Prices
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

    def price(self, flow: ChannelFlow, work: Sequence[Work]) -> float:
        """What all the work of a plan takes together."""
        fetches = (each for each in work if isinstance(each, FetchWork))
        rates = self.rates(flow, {part.line for fetch in fetches for part in fetch.parts})
        total = 0.0
        for each in work:
            if isinstance(each, LayerWork):
                total += self.layer(flow, each.relation, each.columns, each.rows)
            elif isinstance(each, PassWork):
                total += self.passing(flow, each.line, each.channels)
            else:
                total += self.fetch(rates, each.parts, joined=each.joined)
        return total

    def rates(self, flow: ChannelFlow, lines: Iterable[Line]) -> dict[Line, Rates]:
        """What copies from lines cost."""
        return {line: self._rates(flow, line) for line in lines}

    def _rates(self, flow: ChannelFlow, line: Line) -> Rates:
        inner, weight = self.is_inner(flow, line), self.channel_bytes(flow, line)
        ways = self.prices.inner if inner else self.prices.outer
        # Over how many stretches of memory a run of channels is spread.
        outside = self.target.batch * math.prod(flow.shapes[line.value][1 : max(1, line.axis)])
        rows = weight / self.target.item_bytes if inner else outside
        start = self.prices.slice_call
        return Rates(
            slice=0.0 if rows <= 1 and not start else weight * ways.slice_byte,
            cut=start,
            join=weight * ways.join_byte,
            concatenate=weight * ways.run_byte,
            gather=weight * ways.gather_byte,
            run=rows * ways.run_row + self.prices.piece + start,
            inner=inner,
        )

    def pays_to_gather(self, flow: ChannelFlow, part: Fetched, *, joined: bool) -> bool:
        """Whether a gather is cheaper than a concatenation of runs.

        In one that is made anyway, what a gather copies is copied again.
        """
        return self._gathers(self._rates(flow, part.line), part, joined=joined)

    def _gathers(self, rates: Rates, part: Fetched, *, joined: bool) -> bool:
        if part.runs < 2:
            return False
        least = WORTH_IT
        apart, beside = part.runs * rates.run, rates.run
        if not joined:
            apart += part.channels * rates.concatenate + self.prices.call
            beside = 0.0
        elif not rates.inner:
            least = WORTH_A_GATHER
        return self._gather(rates, part) + beside + least < apart

    def _gather(self, rates: Rates, part: Fetched) -> float:
        """Gathering channels one by one."""
        return part.channels * rates.gather + self.prices.call

    def fetch(
        self, rates: Mapping[Line, Rates], parts: Sequence[Fetched], *, joined: bool
    ) -> float:
        """Fetching parts, each as it pays; `joined`, they are concatenated anyway."""
        first = rates[parts[0].line]
        joined = joined or len(parts) > 1
        if not joined and parts[0].runs < 2:
            return 0.0 if parts[0].whole else parts[0].channels * first.slice + first.cut
        if all(part.whole and part.runs == 1 for part in parts):
            joins = sum(part.channels * rates[part.line].join for part in parts)
            return joins + self.prices.call
        total, gathers = 0.0, 0
        for part in parts:
            own, runs = rates[part.line], part.runs
            if self._gathers(own, part, joined=joined):
                total, runs, gathers = total + self._gather(own, part), 1, gathers + 1
            total += part.channels * own.concatenate + runs * own.run
        if gathers == 1 and not joined:
            return self._gather(first, parts[0])
        return total + self.prices.call

    def layer(self, flow: ChannelFlow, relation: Reduce, columns: int, rows: int) -> float:
        """Running a layer that reads so many columns and makes so many rows."""
        area = math.prod(flow.shapes[relation.weight][2:])
        places = self.channel_bytes(flow, relation.out) / self.target.item_bytes
        weight = columns * rows * area * self.target.item_bytes * self.prices.weight_byte
        slower = self._slower(flow, relation, rows if relation.channelwise else columns)
        if relation.channelwise:
            rows = _up(rows, self.block(flow, relation))
            return slower * rows * area * places * self.prices.channelwise_mac + self.prices.call
        effort = slower * rows
        if relation.groups == 1 and self.block(flow, relation) > 1:
            if self.is_inner(flow, relation.out):
                rest = rows % self.prices.block
                effort += rest * (self.prices.tail * self.prices.block - 1)
            elif area > 1 or self.prices.align > 1:
                effort = slower * _up(rows, self.prices.block)
                columns = _up(columns, self.prices.block)
        return columns * effort * area * places * self.prices.mac + weight + self.prices.call

    def _slower(self, flow: ChannelFlow, relation: Reduce, width: int) -> float:
        """How many times as long a layer takes for a width that its fast kernels do not serve."""
        if width % self.multiple(flow, relation) == 0:
            return 1.0
        return self.prices.channelwise_odd if relation.channelwise else self.prices.odd

    def multiple(self, flow: ChannelFlow, relation: Reduce) -> int:
        """What the widths of a layer must be multiples of, to be served by fast kernels."""
        return self.prices.align if len(flow.shapes[relation.weight]) > 2 else 1

    def block(self, flow: ChannelFlow, relation: Reduce) -> int:
        """How many channels a layer makes at once."""
        return self.prices.block if len(flow.shapes[relation.weight]) > 2 else 1

    def passing(self, flow: ChannelFlow, line: Line, channels: int) -> float:
        """Running an elementwise operation that makes so many channels."""
        return channels * self.channel_bytes(flow, line) * self.prices.pass_byte + self.prices.call


def _up(count: int, block: int) -> int:
    return -(-count // block) * block
