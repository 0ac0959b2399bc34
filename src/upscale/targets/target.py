"""Targets: where an export will run, and what moving and computing channels costs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from upscale.errors import TargetError

RUNTIMES = ("torch", "torchscript")
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
        for name, known in (("runtime", RUNTIMES), ("memory_format", FORMATS)):
            if getattr(self, name) not in known:
                raise TargetError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}"
                )
        if self.dtype not in ITEM_BYTES:
            raise TargetError(f"dtype is {self.dtype!r}; it must be one of {', '.join(ITEM_BYTES)}")
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
class CopyCosts:
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
class Costs:
    """What operations cost on a target, in nanoseconds.

    `outer` where a channel's numbers lie side by side, `inner` where the channels do; `call` for
    every operation started, `piece` for every slice that one puts together; `mac` and
    `channelwise_mac` for each multiply-add of a dense or depthwise layer, `weight_byte` for each
    byte of its weight, `pass_byte` for each byte that an elementwise operation writes.
    Convolutions work on `block` channels at once. Where channels lie outside, inputs and outputs
    of those that look at more than a point count as a multiple of it; where they lie inside, an
    output beyond whole blocks costs a `tail` of one.
    """

    outer: CopyCosts
    inner: CopyCosts
    call: float
    piece: float
    mac: float
    channelwise_mac: float
    weight_byte: float
    pass_byte: float
    block: int
    tail: float

    def to_json(self) -> dict[str, object]:
        """The costs as plain data."""
        plain: dict[str, object] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            nested = isinstance(value, CopyCosts)
            plain[field.name] = (
                {own.name: getattr(value, own.name) for own in fields(value)} if nested else value
            )
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, object]) -> Costs:
        """Costs from plain data; raises `TargetError` if it is not complete and positive."""
        try:
            outer, inner = (
                CopyCosts(**{f.name: _number(plain[way][f.name]) for f in fields(CopyCosts)})  # type: ignore[index]
                for way in ("outer", "inner")
            )
            rest = {
                f.name: _number(plain[f.name])
                for f in fields(cls)
                if f.name not in ("outer", "inner", "block")
            }
            return cls(outer=outer, inner=inner, block=int(_number(plain["block"])), **rest)
        except (KeyError, TypeError, ValueError) as error:
            raise TargetError(f"these are no costs of a target: {error}") from error


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise ValueError(f"{value!r} is no cost")
    return float(value)


# Near what `upscale.calibrate` measures on one core with AVX2; where nobody calibrated, what
# matters is how they compare, and that differs less from machine to machine.
BUILT_IN = Costs(
    outer=CopyCosts(gather_byte=0.08, run_byte=0.08, run_row=30.0, slice_byte=0.02, join_byte=0.08),
    inner=CopyCosts(gather_byte=0.15, run_byte=0.11, run_row=8.0, slice_byte=0.03, join_byte=0.06),
    call=4000.0,
    piece=1500.0,
    mac=0.028,
    channelwise_mac=0.15,
    weight_byte=0.05,
    pass_byte=0.08,
    block=8,
    tail=0.5,
)
