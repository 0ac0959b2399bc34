"""Prices: what single operations cost on a target, and what is worth a decision. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from upscale.errors import TargetError

# Estimates are no better than this, in nanoseconds: what saves less is not worth reading or making
# a channel more.
WORTH_IT = 10_000.0
# What a gather must save where runs are concatenated anyway and each lies in one stretch: then only
# starts are saved, and how much those cost differs most from runtime to runtime.
WORTH_A_GATHER = 100_000.0
# The part of a plan's time that has to be saved for another plan to be tried.
WORTH_PLANNING = 0.002
# Zeros between a value's channels are pieces of a concatenation, each of which costs a start;
# beyond so many stretches of them one gather fetches both.
MOST_ZEROS = 8


@dataclass(frozen=True, slots=True)
class CopyPrices:
    """What fetching channels costs where they lie one way, in nanoseconds.

    For each byte that a gather, a copy by runs or a strided slice hands on, for each stretch of
    memory that a copy by runs writes (`run_row`), and for each byte where whole tensors are
    joined.
    """

    gather_byte: float
    run_byte: float
    run_row: float
    slice_byte: float
    join_byte: float


@dataclass(frozen=True, slots=True)
class Prices:
    """What operations cost on a target, in nanoseconds.

    `outer` where a channel's numbers lie side by side, `inner` where the channels do; `call` for
    every operation started, `piece` for every slice that one puts together; `mac` and
    `channelwise_mac` for each multiply-add of a dense or depthwise layer, `weight_byte` for each
    byte of its weight, `pass_byte` for each byte that an elementwise operation writes.
    Convolutions work on `block` channels at once. Where channels lie outside, inputs and outputs
    of those that look at more than a point count as a multiple of it; where they lie inside, an
    output beyond whole blocks costs a `tail` of one.

    Some runtimes have fast kernels for widths that are multiples of `align`, and others for the
    rest: there a layer with `odd` inputs takes that many times as long, a depthwise one
    `channelwise_odd` times. Where a slice is no view but a copy, it costs a `slice_call` to start.
    """

    outer: CopyPrices
    inner: CopyPrices
    call: float
    piece: float
    mac: float
    channelwise_mac: float
    weight_byte: float
    pass_byte: float
    block: int
    tail: float
    align: int = 1
    odd: float = 1.0
    channelwise_odd: float = 1.0
    slice_call: float = 0.0

    @property
    def favours_whole(self) -> bool:
        """Whether reading whole tensors, or making whole blocks, is worth more than a copy less."""
        return self.align > 1 or self.slice_call > 0

    @classmethod
    def from_json(cls, plain: Mapping[str, object]) -> Prices:
        """Prices from plain data; raises `TargetError` if it is not complete and positive."""
        try:
            outer, inner = (
                CopyPrices(**{f.name: _number(plain[way][f.name]) for f in fields(CopyPrices)})  # type: ignore[index]
                for way in ("outer", "inner")
            )
            # What was measured before a price was known does without it.
            own = {f.name: plain.get(f.name, f.default) for f in fields(cls)}
            rest = {f.name: _number(own[f.name]) for f in fields(cls) if f.type == "float"}
            block, align = (int(_number(own[name])) for name in ("block", "align"))
            return cls(outer=outer, inner=inner, block=block, align=max(1, align), **rest)
        except (KeyError, TypeError, ValueError) as error:
            raise TargetError(f"these are no prices of a target: {error}") from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise ValueError(f"{value!r} is no price")
    return float(value)


# Near what `upscale.calibrate` measures for torch on one core with AVX2; where nobody calibrated,
# what matters is how they compare, and that differs less from machine to machine.
BUILT_IN = Prices(
    outer=CopyPrices(
        gather_byte=0.08, run_byte=0.08, run_row=30.0, slice_byte=0.02, join_byte=0.08
    ),
    inner=CopyPrices(gather_byte=0.15, run_byte=0.11, run_row=8.0, slice_byte=0.03, join_byte=0.06),
    call=4000.0,
    piece=1500.0,
    mac=0.028,
    channelwise_mac=0.15,
    weight_byte=0.05,
    pass_byte=0.08,
    block=8,
    tail=0.5,
)
