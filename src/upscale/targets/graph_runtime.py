"""Runtimes that take a whole graph and lay its tensors out themselves: what things cost there.

What one operation costs cannot be timed by itself: alone, it would be paid for layouts that change
at its borders. So small networks race that differ in one thing, and prices are their differences:

    conv → conv        and        conv → slice → conv

differ by a slice, and by what the runtime does around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from upscale.capture import Example
from upscale.errors import TargetError
from upscale.targets.prices import CopyPrices, Prices
from upscale.targets.racing import race, unseen
from upscale.targets.runtime import Runtime
from upscale.targets.target import Pricing, Target

# One tensor of a middling network, three quarters of its channels, and how often a network does
# what it is there for.
CHANNELS, KEPT, SIDE, TIMES = 128, 96, 28, 4
# A linear so wide that reading its weight takes longer than what it computes.
FEATURES = 1024
RUNS = 25
# Blocks there may be, and widths that tell them apart.
BLOCKS, WIDTH = (1, 4, 8, 16), 64
# Kernels are others, not the same ones less full, where a layer takes so many times as long.
OTHER = 1.15


def arrays(example: Example) -> list[Any]:
    """The tensors of an example as runtimes take them that are not torch's."""
    try:
        return [tensor.detach().numpy() for tensor in example.tensors]
    except TypeError as error:  # numpy has no word for bfloat16
        raise TargetError(f"this runtime takes no such input: {error}; try float32") from error


class GraphRuntime(Runtime):
    """A runtime that sees the whole graph; its prices are differences between small networks."""

    in_torch = False

    def pricing(self, target: Target, prices: Prices, scale: float) -> Pricing:
        # How the example lies in memory says nothing of how tensors lie within.
        return Pricing(replace(target, memory_format="contiguous"), prices, scale)

    def block(self, target: Target) -> int:
        x = torch.randn(target.batch, WIDTH, SIDE, SIDE)
        widths = (WIDTH, WIDTH - 4, WIDTH - 8, WIDTH - 16)
        nets = {str(width): _convolutions(WIDTH, width, 3) for width in widths}
        taken = self._ns(nets, x, target)

        def error(block: int) -> float:
            """How far from what was measured it would be, if all were rounded up to a block."""
            whole = _rounded(WIDTH, block) ** 2
            expected = (_rounded(width, block) ** 2 / whole for width in widths)
            found = (taken[str(width)] / taken[str(WIDTH)] for width in widths)
            return sum((a - b) ** 2 for a, b in zip(expected, found, strict=True))

        return min(BLOCKS, key=error)

    def measure(self, target: Target) -> Prices:
        places = target.batch * SIDE * SIDE
        whole, part = (c * places * target.item_bytes for c in (CHANNELS, KEPT))
        nets = _networks()
        starts = {name: nets[name] for name in ("two", "more", "kept", "slice", "few", "many")}
        small = self._ns(starts, torch.randn(target.batch, CHANNELS, 1, 1), target)
        taken = self._ns(nets, torch.randn(target.batch, CHANNELS, SIDE, SIDE), target)
        block = self.block(target)

        def each(name: str, times: dict[str, float], than: str = "two") -> float:
            return max(times[name] - times[than], 1.0) / TIMES

        call = each("more", small)
        dense = max(each("more", taken) - call, 1.0)
        # A copy is paid for channels that were made in vain, too.
        copies = {
            name: max(each(name, taken, "kept") - (CHANNELS - KEPT) / CHANNELS * dense, 1.0)
            for name in ("slice", "gather", "few", "many")
        }
        start = each("slice", small, "kept")
        piece = max(small["many"] - small["few"], 1.0) / TIMES / 14
        row = max(copies["many"] - copies["few"] - 14 * piece, 0.0) / 14 / target.batch
        copying = CopyPrices(
            gather_byte=copies["gather"] / part,
            run_byte=max(copies["few"] - 2 * (piece + row * target.batch), 1.0) / part,
            run_row=row,
            slice_byte=max(copies["slice"] - start, 0.0) / part,
            join_byte=each("join", taken, "more") / whole,
        )
        align, odd, channelwise_odd = _aligned(taken)
        linear = self._ns(_linears(), torch.randn(1, FEATURES), target)
        weights = FEATURES * FEATURES
        mac = dense / (CHANNELS * CHANNELS * places)
        read = max(each("more", linear) - call - weights * mac, 0.0)
        return Prices(
            outer=copying,
            inner=copying,
            call=call,
            piece=piece,
            mac=mac,
            channelwise_mac=max(each("channelwise", taken) - call, 1.0) / (9 * CHANNELS * places),
            weight_byte=read / (weights * target.item_bytes),
            pass_byte=each("pass", taken) / whole,
            block=block,
            tail=0.5,
            align=align,
            odd=odd,
            channelwise_odd=channelwise_odd,
            slice_call=start,
        )

    def _ns(self, nets: Mapping[str, nn.Module], x: Tensor, target: Target) -> dict[str, float]:
        """What networks take when nothing disturbs them, in nanoseconds."""
        dtype = getattr(torch, target.dtype)
        given = Example.of(x.to(dtype))
        ready = {
            name: self.prepare(net.eval().to(dtype), given, target) for name, net in nets.items()
        }
        return {n: 1e6 * run.low_ms for n, run in race(ready, runs=RUNS, peak=unseen).items()}


class _Between(nn.Module):
    """Convolutions with something between them, of which each reads `kept` channels."""

    def __init__(self, between: Callable[[Tensor], Tensor], kept: int, made: int = CHANNELS):
        super().__init__()
        layers = [nn.Conv2d(CHANNELS, made, 1)]
        layers += [nn.Conv2d(kept, made, 1) for _ in range(TIMES)]
        self.layers, self.between = nn.ModuleList(layers), between
        self.last = nn.Conv2d(made, CHANNELS, 1)

    def forward(self, x: Tensor) -> Any:
        """Run the network."""
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(self.between(x) if number else x))
        return self.last(x)


def _convolutions(ends: int, width: int, area: int, times: int = TIMES) -> nn.Module:
    """Convolutions of one width between two of another."""
    layers: list[nn.Module] = [nn.Conv2d(ends, width, 1), nn.ReLU()]
    for _ in range(times):
        layers += [nn.Conv2d(width, width, area, padding=area // 2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, ends, 1))


def _depthwise(width: int) -> nn.Module:
    """Depthwise convolutions between two others."""
    layers: list[nn.Module] = [nn.Conv2d(CHANNELS, width, 1), nn.ReLU()]
    for _ in range(TIMES):
        layers += [nn.Conv2d(width, width, 3, padding=1, groups=width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, CHANNELS, 1))


class _Joined(nn.Module):
    """Convolutions whose inputs are made in two halves."""

    def __init__(self) -> None:
        super().__init__()
        half = CHANNELS // 2
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.ones, self.others = (
            nn.ModuleList(nn.Conv2d(CHANNELS, half, 1) for _ in range(TIMES)) for _ in range(2)
        )
        self.last = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor) -> Any:
        """Run the network."""
        x = torch.relu(self.first(x))
        for one, other in zip(self.ones, self.others, strict=True):
            x = torch.cat([torch.relu(one(x)), torch.relu(other(x))], 1)
        return self.last(x)


class _Gated(nn.Module):
    """Convolutions with an elementwise operation behind each that is not part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.last = nn.Conv2d(CHANNELS, CHANNELS, 1)

    def forward(self, x: Tensor) -> Any:
        """Run the network."""
        x = self.first(x)
        for _ in range(TIMES):
            x = nn.functional.silu(x)
        return self.last(x)


def _networks() -> dict[str, nn.Module]:
    """Networks that differ in one thing."""
    drawn = torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(0))

    def cat(x: Tensor, parts: int) -> Tensor:
        step, kept = CHANNELS // parts, KEPT // parts
        return torch.cat([x.narrow(1, at * step, kept) for at in range(parts)], 1)

    few, many = partial(cat, parts=2), partial(cat, parts=16)
    nets: dict[str, nn.Module] = {
        "two": _convolutions(CHANNELS, CHANNELS, 1, times=0),
        "more": _convolutions(CHANNELS, CHANNELS, 1),
        "channelwise": _depthwise(CHANNELS),
        "kept": _Between(lambda x: x, KEPT, KEPT),
        "slice": _Between(lambda x: x.narrow(1, CHANNELS - KEPT, KEPT), KEPT),
        "gather": _Between(lambda x: x.index_select(1, drawn[:KEPT]), KEPT),
        "few": _Between(few, KEPT),
        "many": _Between(many, KEPT),
        "join": _Joined(),
        "pass": _Gated(),
    }
    for beyond in BLOCKS:
        nets[f"more {beyond}"] = _convolutions(CHANNELS, CHANNELS - beyond, 1)
        nets[f"channelwise {beyond}"] = _depthwise(CHANNELS - beyond)
    return nets


def _linears() -> dict[str, nn.Module]:
    """Linears on one row."""
    wide = [nn.Linear(FEATURES, FEATURES) for _ in range(2 + TIMES)]
    return {"two": nn.Sequential(*wide[:2]), "more": nn.Sequential(*wide)}


def _aligned(taken: Mapping[str, float]) -> tuple[int, float, float]:
    """What widths must be multiples of to be served by the fast kernels, and how many times as
    long dense and depthwise layers take for others."""
    slower = {
        kind: [_slower(taken, kind, beyond) for beyond in BLOCKS]
        for kind in ("more", "channelwise")
    }
    odd = [any(each[number] > OTHER for each in slower.values()) for number in range(len(BLOCKS))]
    if not any(odd):
        return 1, 1.0, 1.0
    last = max(number for number, other in enumerate(odd) if other)
    align = (*BLOCKS, 2 * BLOCKS[-1])[last + 1]
    dense, channelwise = (_mean(slower[kind][: last + 1]) for kind in ("more", "channelwise"))
    return align, max(dense, 1.0), max(channelwise, 1.0)


def _slower(taken: Mapping[str, float], kind: str, beyond: int) -> float:
    """How many times as long layers take that are a few channels narrower."""
    own = (taken[f"{kind} {beyond}"] - taken["two"]) / max(taken[kind] - taken["two"], 1.0)
    return max(own, 0.0)


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _rounded(width: int, block: int) -> int:
    return -(-width // block) * block
