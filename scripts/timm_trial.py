"""A blind trial: timm models drawn by a seed, exported and held against their masked models.

    python -m scripts.timm_trial --seed 2026 --count 10

needs the `timm` extra. One model is drawn from each of `count` families (a family is a module of
timm), among those of at most `--most-parameters`; nobody looks at them first. Each runs in a
process of its own, at 25% random masks, like a row of the zoo.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import subprocess
import sys
from collections import defaultdict
from typing import Any

import torch
from torch import nn

import upscale
from scripts.zoo.trial import IMAGES, SIZES, Case, accepted, random_selections
from trials.lively import make_lively, tell_channels_apart
from upscale.capture import Example
from upscale.verify import compare
from upscale.zoo import import_torchvision


def timm() -> Any:
    """The package, once torchvision imports beside this torch."""
    import_torchvision()
    return importlib.import_module("timm")


def draw(seed: int, count: int, most_parameters: int) -> list[str]:
    """One small enough model of each of `count` families, in the order a seed gives."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in timm().list_models():
        families[timm().models._registry._model_to_module[name]].append(name)
    generator = random.Random(seed)
    drawn: list[str] = []
    for family in generator.sample(sorted(families), len(families)):
        for name in generator.sample(families[family], len(families[family])):
            with torch.device("meta"):
                size = sum(p.numel() for p in timm().create_model(name).parameters())
            if size <= most_parameters:
                drawn.append(name)
                break
        if len(drawn) == count:
            return drawn
    return drawn


def make_model(name: str, seed: int) -> nn.Module:
    """A model with random weights and channels that all differ; the same for the same seed."""
    torch.manual_seed(seed)
    model: nn.Module = timm().create_model(name).eval()
    tell_channels_apart(model)
    return model


def try_one(name: str, seed: int) -> dict[str, Any]:
    """The row of one model."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    model = make_model(name, seed)
    native = model.default_cfg["input_size"][1:]  # type: ignore[index]
    shapes = [(1, 3, size, size) for size in SIZES] + [(1, 3, *native)]
    example = accepted(model, shapes)
    compared = accepted(model, ((IMAGES, *example[1:-1], example[-1] + 32), (IMAGES, *example[1:])))
    lively = make_lively(
        lambda: make_model(name, seed),
        lambda model: random_selections(model, Case(0.25), seed),
        compared,
    )
    model, selections = lively.model, lively.selections
    plan = upscale.plan(model, torch.randn(example), selections)
    exported, masked = upscale.export(model, plan), upscale.mask(model, selections)
    verified = compare(exported, masked, Example.of(lively.inputs))
    left, before = (sum(p.numel() for p in m.parameters()) for m in (exported, masked))
    return {
        "model": name,
        "status": "exact" if verified.exact else "wrong" if verified.differs else "not tested",
        "relative error": verified.relative_error,
        "masked model's own response to 1e-15": lively.measured.to_rounding,
        "varies": round(lively.measured.variation, 3),
        "parameters left": round(left / before, 3),
        "copies": plan.copies,
        "frozen": sorted({f.operation for f in plan.frozen}),
    }


def main() -> None:
    """Draw, try and print; the exit code tells whether all were exact."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--most-parameters", type=int, default=60_000_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(try_one(arguments.one, arguments.seed)))
        return
    failed = 0
    for name in draw(arguments.seed, arguments.count, arguments.most_parameters):
        command = [sys.executable, "-m", "scripts.timm_trial", "--one", name]
        done = subprocess.run(
            [*command, "--seed", str(arguments.seed)], capture_output=True, text=True, timeout=900
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines:
            row = json.loads(lines[-1])
        else:
            row = {"model": name, "status": "failed: " + done.stderr.strip().splitlines()[-1][:300]}
        failed += row["status"] != "exact"
        print(json.dumps(row), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
