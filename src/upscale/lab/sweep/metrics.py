"""Metrics: what a cell measures, as numbers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from upscale.lab.sources import SourceError, imported
from upscale.lab.sweep.trials import Trial
from upscale.targets.racing import peak_bytes, profiled_peak_bytes, race_models

Result = Mapping[str, Any]
# Who runs against the unpruned model, and the method that exports it.
RACED = {"ours": "optimal", "baseline": "none", "zero_copy": "zero-copy"}


@dataclass(frozen=True, slots=True)
class Metric:
    """A function of a trial that returns numbers by name.

    `alone` is for whatever is timed: such a cell runs while nothing else does. `selects` is
    false where the selection has no say.
    """

    measure: Callable[[Trial], Result]
    alone: bool = False
    selects: bool = True


def metric_of(name: str) -> Metric:
    """The metric of a name: one of ours, or what an import path names, a `Metric` or a function."""
    if name in KNOWN:
        return KNOWN[name]
    found = imported(name)
    if isinstance(found, Metric):
        return found
    if not callable(found):
        raise SourceError(f"{name} is a {type(found).__name__}, not a function of a trial")
    return Metric(found, bool(getattr(found, "alone", False)), bool(getattr(found, "selects", 1)))


def accuracy(trial: Trial) -> Result:
    """Right answers of the masked model, which computes what exports compute, in percent."""
    right = seen = 0
    with torch.inference_mode():
        for inputs, labels in trial.data:
            found = trial.masked(inputs)
            if not isinstance(found, Tensor) or found.dim() != 2:
                raise SourceError("accuracy needs a model that gives a score for each class")
            right += int((found.argmax(dim=1) == labels).sum())
            seen += len(labels)
    if not seen:
        raise SourceError(f"{trial.cell.data} holds no image")
    return {"top1_percent": 100 * right / seen, "images": seen}


def latency(trial: Trial) -> Result:
    """The export's time as a share of the unpruned model's, raced turn by turn in one loop."""
    models = {"unpruned": trial.model, "exported": trial.exported}
    taken = race_models(models, trial.example, trial.target, runs=trial.cell.runs)
    ratio = taken["exported"].median_ms / taken["unpruned"].median_ms
    told: dict[str, Any] = {"ratio": ratio, "copied_bytes": trial.plan.copied_bytes}
    for name, own in taken.items():
        kinds = {"": own.median_ms, "_low": own.low_ms, "_high": own.high_ms}
        told |= {f"{name}{kind}_ms": value for kind, value in kinds.items()}
    return told


def race(trial: Trial) -> Result:
    """Ours, the baseline and zero-copy against the unpruned model, all in one loop.

    Medians make the ratios; mean, standard deviation and the profiler's peak memory stand beside.
    """
    models: dict[str, nn.Module] = {"unpruned": trial.model}
    told: dict[str, Any] = {}
    for name, method in RACED.items():
        own = trial.by(method)
        models[name] = own.exported
        if name != "zero_copy":
            told[f"{name}_copied_bytes"] = own.plan.copied_bytes
    taken = race_models(
        models, trial.example, trial.target, runs=trial.cell.runs, peak=profiled_peak_bytes
    )
    for name, measured in taken.items():
        kinds = ("median_ms", "mean_ms", "deviation_ms", "peak_bytes")
        told |= {f"{name}_{kind}": getattr(measured, kind) for kind in kinds}
        if name != "unpruned":
            told[f"{name}_ratio"] = measured.median_ms / taken["unpruned"].median_ms
    return told


def parameters(trial: Trial) -> Result:
    """The numbers that the export holds."""
    return _against(lambda model: sum(p.numel() for p in model.parameters()), trial)


def macs(trial: Trial) -> Result:
    """Multiply-accumulates of one call with the example; torch counts each as two operations."""

    def count(model: nn.Module) -> int:
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            model(trial.example)
        return int(counter.get_total_flops()) // 2

    return _against(count, trial)


def copies(trial: Trial) -> Result:
    """How many reads copy, how much, and what no order of channels could do without."""
    return {name: getattr(trial.plan, name) for name in ("copies", "copied_bytes", "lower_bound")}


def memory(trial: Trial) -> Result:
    """The most memory that the tensors of one call hold at once, in bytes."""

    def most(model: nn.Module) -> int:
        with torch.inference_mode():
            return peak_bytes(lambda: model(trial.example))

    return _against(most, trial)


def _against(count: Callable[[nn.Module], int], trial: Trial) -> Result:
    left, whole = count(trial.exported), count(trial.model)
    return {"exported": left, "unpruned": whole, "ratio": left / max(1, whole)}


KNOWN = {own.__name__: Metric(own) for own in (accuracy, parameters, macs, copies, memory)}
KNOWN |= {own.__name__: Metric(own, alone=True) for own in (latency, race)}
