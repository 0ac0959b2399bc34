"""Calibration: what moving and computing channels costs on this machine, measured in seconds."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from upscale.errors import TargetError
from upscale.targets.racing import computing_on, race
from upscale.targets.target import BUILT_IN, CopyCosts, Costs, Target

# One tensor of a middling network: as many channels, and as high and wide.
CHANNELS, SIDE = 128, 28
RUNS = 30
FORMATS = {"outer": torch.contiguous_format, "inner": torch.channels_last}


def calibrate(target: Target, *, save: bool = True) -> Costs:
    """Measure what operations cost where a target's runtime runs; a matter of seconds.

    The result is kept in the user's cache directory, and plans use it from then on.
    """
    if target.device != "cpu":
        raise TargetError(f"nothing is known of the device {target.device!r}; only cpu is")
    with computing_on(target.threads):
        costs = _measured(target)
    if save:
        _write(target, costs)
    return costs


def costs_of(target: Target) -> Costs:
    """The costs measured for a target on this machine, or the built-in ones."""
    try:
        kept = json.loads(cache_path().read_text())
        return Costs.from_json(kept[_key(target)])
    except (OSError, ValueError, KeyError, TypeError, TargetError):
        return BUILT_IN


def cache_path() -> Path:
    """The file in which calibrations are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "upscale" / "costs.json"


def _key(target: Target) -> str:
    """What costs depend on: machine, versions, and the target but for its batch and format."""
    machine = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {platform.node()}"
    where = f"{target.runtime} {target.device} {target.dtype} {target.threads}"
    return f"{machine}; torch {torch.__version__}; {where}"


def _write(target: Target, costs: Costs) -> None:
    """Add costs to the cache; whoever reads it meanwhile sees the old file or the new one."""
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        kept = {}
    kept = kept if isinstance(kept, dict) else {}
    kept[_key(target)] = asdict(costs)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as stream:
        json.dump(kept, stream, indent=2)
    Path(stream.name).replace(path)


def _measured(target: Target) -> Costs:
    dtype = getattr(torch, target.dtype)
    call, piece = _overheads(target)
    x = torch.randn(target.batch, CHANNELS, SIDE, SIDE)
    ways = {
        name: _copying(x.to(dtype, memory_format=memory), piece) for name, memory in FORMATS.items()
    }
    inner = x.to(dtype, memory_format=torch.channels_last)
    layers = {
        "whole": nn.Conv2d(CHANNELS, 64, 3, padding=1),
        "tail": nn.Conv2d(CHANNELS, 63, 3, padding=1),
        "deep": nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
        "channelwise": nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    }
    ready = {name: _laid_out(layer, inner) for name, layer in layers.items()}
    wide, rows = nn.Linear(1024, 1024).to(dtype), torch.randn(1, 1024).to(dtype)
    calls: dict[str, Callable[[], object]] = {
        name: partial(layer, inner) for name, layer in ready.items()
    }
    taken = _ns({**calls, "linear": lambda: wide(rows), "pass": lambda: F.relu(inner)})
    places = target.batch * SIDE * SIDE
    mac = max(taken["deep"] - call, 1.0) / (9 * CHANNELS * CHANNELS * places)
    block = 16 if "512" in torch.backends.cpu.get_cpu_capability() else 8
    rest = 63 % block
    effort = 64 * taken["tail"] / taken["whole"] - (63 - rest)
    weights = 1024 * 1024 * target.item_bytes
    return Costs(
        **ways,
        call=call,
        piece=piece,
        mac=mac,
        channelwise_mac=max(taken["channelwise"] - call, 1.0) / (9 * CHANNELS * places),
        weight_byte=max(taken["linear"] - call - 1024 * 1024 * mac, 0.0) / weights,
        pass_byte=max(taken["pass"] - call, 1.0) / (inner.numel() * target.item_bytes),
        block=block,
        tail=max(effort / (rest * block), 1 / block),
    )


def _overheads(target: Target) -> tuple[float, float]:
    """What starting an operation costs, and each slice that is concatenated; on next to nothing."""
    small, count = torch.ones(1, 64, 1, 1), 32
    chain: Callable[[Tensor], Tensor] = nn.Sequential(*(nn.ReLU() for _ in range(count)))
    if target.runtime == "torchscript":
        chain = torch.jit.freeze(torch.jit.trace(nn.Sequential(*chain).eval(), small))  # type: ignore[misc]

    def cat(parts: int) -> Tensor:
        return torch.cat([small.narrow(1, at, 1) for at in range(parts)], 1)

    taken = _ns({"chain": lambda: chain(small), "two": lambda: cat(2), "many": lambda: cat(count)})
    return taken["chain"] / count, max(taken["many"] - taken["two"], 1.0) / (count - 2)


def _copying(x: Tensor, piece: float) -> CopyCosts:
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
        {
            "gather": gather,
            "few": lambda: cat(2),
            "join": lambda: torch.cat(halves, 1),
            "many": lambda: cat(16),
            "packed": lambda: layer(packed),
            "slice": lambda: layer(x.narrow(1, channels - kept, kept)),
        }
    )
    written = packed.numel() * x.element_size()
    stretches = len(x) * (SIDE * SIDE if inner else 1)
    row = max((taken["many"] - taken["few"]) / 14 - piece, 0.0) / stretches
    return CopyCosts(
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
    for parameter in layer.parameters():
        own = parameter.data.to(x.dtype)
        parameter.data = own.contiguous(memory_format=_format(x)) if own.dim() == 4 else own
    return layer


def _ns(contestants: dict[str, Callable[[], object]]) -> dict[str, float]:
    """What calls take when nothing disturbs them, in nanoseconds."""
    return {n: 1e6 * own.low_ms for n, own in race(contestants, runs=RUNS).items()}
