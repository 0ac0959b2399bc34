"""torch itself, operation by operation: how it runs a model, and what it takes for that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.targets.prices import CopyPrices, Prices
from upscale.targets.racing import race
from upscale.targets.runtime import Runtime
from upscale.targets.target import Target

# One tensor of a middling network: as many channels, and as high and wide.
CHANNELS, SIDE = 128, 28
# A linear so wide that reading its weight takes longer than what it computes.
FEATURES = 1024
RUNS = 30


class Torch(Runtime):
    """Runs a model as it is."""

    name = "torch"
    needs = ("torch",)

    def version(self) -> str:
        return f"torch {torch.__version__}"

    def prepare(self, model: nn.Module, example: Example, target: Target) -> Callable[[], object]:
        own = copy.deepcopy(model)
        if target.memory_format == "channels_last":
            own = own.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return partial(self.compiled(own, example), *example.args, **example.kwargs)

    def compiled(self, model: nn.Module, example: Example) -> Any:
        """What is called: here the model itself, which whoever compiles may change."""
        return model

    def block(self, target: Target) -> int:
        return 16 if "512" in torch.backends.cpu.get_cpu_capability() else 8

    def measure(self, target: Target) -> Prices:
        dtype, block = getattr(torch, target.dtype), self.block(target)
        call, piece = self._starts()
        x = torch.randn(target.batch, CHANNELS, SIDE, SIDE)
        outer, inner = x.to(dtype), x.to(dtype, memory_format=torch.channels_last)
        taken = _layers(inner)
        places = target.batch * SIDE * SIDE
        mac = max(taken["deep"] - call, 1.0) / (9 * CHANNELS * CHANNELS * places)
        # What the outputs beyond whole blocks take, of 63: the rest of them is whole blocks.
        rest = 63 % block
        effort = 64 * taken["tail"] / taken["whole"] - (63 - rest)
        weights = FEATURES * FEATURES * target.item_bytes
        return Prices(
            outer=_copying(outer, piece),
            inner=_copying(inner, piece),
            call=call,
            piece=piece,
            mac=mac,
            channelwise_mac=max(taken["channelwise"] - call, 1.0) / (9 * CHANNELS * places),
            weight_byte=max(taken["linear"] - call - FEATURES * FEATURES * mac, 0.0) / weights,
            pass_byte=max(taken["pass"] - call, 1.0) / (inner.numel() * target.item_bytes),
            block=block,
            tail=max(effort / (rest * block), 1 / block),
        )

    def _starts(self) -> tuple[float, float]:
        """What starting an operation costs, and each slice that is concatenated; on next to
        nothing."""
        small, count = torch.ones(1, 64, 1, 1), 32
        chain = nn.Sequential(*(nn.ReLU() for _ in range(count)))
        run = self.compiled(chain, Example.of(small))

        def cat(parts: int) -> Tensor:
            return torch.cat([small.narrow(1, at, 1) for at in range(parts)], 1)

        taken = _ns(chain=partial(run, small), two=partial(cat, 2), many=partial(cat, count))
        return taken["chain"] / count, max(taken["many"] - taken["two"], 1.0) / (count - 2)


def _layers(inner: Tensor) -> dict[str, float]:
    """What layers take that read a channels-last tensor, and a linear on one row."""
    layers = {
        "whole": nn.Conv2d(CHANNELS, 64, 3, padding=1),
        "tail": nn.Conv2d(CHANNELS, 63, 3, padding=1),
        "deep": nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
        "channelwise": nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
        "pass": nn.ReLU(),
    }
    wide, row = _laid_out(nn.Linear(FEATURES, FEATURES), inner), torch.randn(1, FEATURES)
    calls = {name: partial(_laid_out(layer, inner), inner) for name, layer in layers.items()}
    return _ns(**calls, linear=partial(wide, row.to(inner.dtype)))


def _copying(x: Tensor, piece: float) -> CopyPrices:
    """What fetching three quarters of a tensor's channels costs, in each way."""
    channels = x.shape[1]
    kept = channels * 3 // 4
    inner = x.stride(1) == 1
    drawn = torch.randperm(channels, generator=torch.Generator().manual_seed(0))
    index = drawn[:kept].sort().values
    packed = x.narrow(1, 0, kept).clone(memory_format=_format(x))
    halves = [part.clone(memory_format=_format(x)) for part in x.chunk(2, 1)]
    layer = _laid_out(nn.Conv2d(kept, 32, 1), x)

    def gather() -> Tensor:
        if not inner:
            return x.index_select(1, index)
        rows = x.permute(0, 2, 3, 1)
        return rows.reshape(-1, channels).index_select(1, index).view(*rows.shape[:-1], -1)

    def cat(parts: int) -> Tensor:
        step = channels // parts
        return torch.cat([x.narrow(1, at * step, step * 3 // 4) for at in range(parts)], 1)

    taken = _ns(
        gather=gather,
        few=lambda: cat(2),
        join=lambda: torch.cat(halves, 1),
        many=lambda: cat(16),
        packed=lambda: layer(packed),
        slice=lambda: layer(x.narrow(1, channels - kept, kept)),
    )
    written = packed.numel() * x.element_size()
    stretches = len(x) * (SIDE * SIDE if inner else 1)
    row = max((taken["many"] - taken["few"]) / 14 - piece, 0.0) / stretches
    return CopyPrices(
        gather_byte=taken["gather"] / written,
        run_byte=max(taken["few"] - 2 * (piece + row * stretches), 1.0) / written,
        run_row=row,
        slice_byte=max(taken["slice"] - taken["packed"], 0.0) / written,
        join_byte=taken["join"] / (x.numel() * x.element_size()),
    )


def _format(x: Tensor) -> torch.memory_format:
    return torch.channels_last if x.stride(1) == 1 else torch.contiguous_format


def _laid_out(layer: nn.Module, x: Tensor) -> nn.Module:
    """A layer with weights like a tensor: its dtype, and its memory format."""
    return layer.to(x.dtype, memory_format=_format(x))  # type: ignore[call-overload, no-any-return]


def _ns(**contestants: Callable[[], object]) -> dict[str, float]:
    """What calls take when nothing disturbs them, in nanoseconds."""
    return {name: 1e6 * run.low_ms for name, run in race(contestants, runs=RUNS).items()}


RUNTIME = Torch()
