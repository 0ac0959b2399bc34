"""Selections on every torchvision classifier: `python scripts/selections.py [--write]`.

For each model: whether amounts are met (local shares of channels within one channel a layer,
global shares of channels and of parameters within 0.5% of the target), whether `contiguous`
copies anything, and how long selecting takes. Models have random weights; one process each. The
program fails if any row does. `--write` writes `docs/selections.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import upscale
from upscale import Parameters
from upscale.capture import Example, capture
from upscale.flow.analyse import analyse
from upscale.model.layers import weight_names
from upscale.selection.units import find_units
from upscale.zoo import import_torchvision, torchvision_model

ROOT = Path(__file__).resolve().parent.parent
SIZES = (64, 224, 299, 256)
SHARE = 0.3
# A layer's share within one channel; a share of all within this part of the target.
MET = 0.005


@dataclass(frozen=True, slots=True)
class Row:
    """One model. Shares are of what was asked: `local` the worst miss of a layer, in channels."""

    model: str
    local: dict[str, float]
    channels: dict[str, float]
    parameters: dict[str, float]
    contiguous_bytes: int
    contiguous_channels: float
    seconds: float
    contiguous_seconds: float

    @property
    def met(self) -> bool:
        """Whether every amount is met and nothing is copied."""
        shares = (*self.channels.values(), *self.parameters.values())
        near = all(abs(share - SHARE) <= MET * SHARE for share in shares)
        return near and max(self.local.values()) <= 1.0 and self.contiguous_bytes == 0


def try_model(name: str) -> Row:
    """Select in every regime."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torchvision_model(name)
    example = _accepted(model)
    local: dict[str, float] = {}
    channels: dict[str, float] = {}
    parameters: dict[str, float] = {}
    for constraint in ("none", "segment"):
        start = time.process_time()
        found = upscale.select(model, example, amount=SHARE, constraint=constraint)
        seconds = time.process_time() - start
        widths = found.reached.widths if found.reached else {}
        features = features_per_channel(model, example, constraint)
        local[constraint] = max(
            abs(len(tuple(kept)) - (1 - SHARE) * widths[layer]) / features[layer]
            for layer, kept in found.kept.items()
            if widths[layer] > features[layer]
        )
        for measure, into in ((SHARE, channels), (Parameters(SHARE), parameters)):
            found = upscale.select(
                model, example, amount=measure, constraint=constraint, scope="global"
            )
            into[constraint] = found.reached.share if found.reached else 0.0
    start = time.process_time()
    found = upscale.select(model, example, amount=SHARE, constraint="contiguous")
    contiguous_seconds = time.process_time() - start
    return Row(
        model=name,
        local=local,
        channels=channels,
        parameters=parameters,
        contiguous_bytes=upscale.plan(model, example, found).copied_bytes,
        contiguous_channels=found.reached.channels if found.reached else 0.0,
        seconds=seconds,
        contiguous_seconds=contiguous_seconds,
    )


def features_per_channel(
    model: torch.nn.Module, example: torch.Tensor, constraint: str
) -> dict[str, float]:
    """How many columns of each layer go together: after a flatten, those of one channel."""
    flow = analyse(capture(model, Example.of(example)))
    units = find_units(flow, side="input", constraint=constraint).of
    names = weight_names(model)
    return {n: len(units[w]) / len(set(units[w].tolist())) for n, w in names.items() if w in units}


def _accepted(model: torch.nn.Module) -> torch.Tensor:
    """An image of the first size that a model takes."""
    for size in SIZES:
        try:
            with torch.inference_mode():
                model(torch.zeros(1, 3, size, size))
        except Exception:  # a model may refuse a size by any exception
            continue
        return torch.zeros(1, 3, size, size)
    raise ValueError("the model takes no image of a usual size")


def as_table(rows: Sequence[Row]) -> str:
    """The rows in markdown; cells with slashes read `none / segment`."""
    head = ["model", "met", "worst layer, channels off", "channels pruned", "parameters pruned"]
    head += ["contiguous: bytes copied", "channels pruned", "seconds", "contiguous, seconds"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        cells = [row.model, "yes" if row.met else "no"]
        cells.append(" / ".join(f"{miss:.2f}" for miss in row.local.values()))
        cells.append(" / ".join(f"{share:.2%}" for share in row.channels.values()))
        cells.append(" / ".join(f"{share:.2%}" for share in row.parameters.values()))
        cells += [f"{row.contiguous_bytes:,}", f"{row.contiguous_channels:.1%}"]
        lines.append([*cells, f"{row.seconds:.2f}", f"{row.contiguous_seconds:.1f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> int:
    """Try every model, each in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=lambda text: text.split(","), default=None)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(asdict(try_model(arguments.one))))
        return 0
    models = import_torchvision().models
    names = arguments.models or models.list_models(module=models)
    rows = []
    for number, name in enumerate(names, start=1):
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"{number}/{len(names)} {name} failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        rows.append(Row(**json.loads(done.stdout.splitlines()[-1])))
        print(f"{number}/{len(names)} {as_table(rows[-1:]).splitlines()[-1]}", flush=True)
    met = sum(row.met for row in rows)
    summary = f"{met} of {len(names)} models meet every amount, and copy nothing if contiguous."
    print(summary)
    if arguments.write:
        text = [f"# Selections\n\n{EXPLANATION}\n", summary, "", as_table(rows), ""]
        (ROOT / "docs" / "selections.md").write_text("\n".join(text))
    return 0 if met == len(names) else 1


EXPLANATION = f"""\
Written by `python scripts/selections.py --write` on {datetime.date.today()}: every torchvision
classifier with random weights, L2, {SHARE:.0%} of input channels (local: of each layer; global: of
all) or of parameters (global). Cells with slashes read `none / segment`. A row is met if no layer
with several channels is off by more than one, if global amounts are within {MET:.1%} of the target,
and if `contiguous` copies no byte. Seconds are processor time of one local selection, capture
included."""


if __name__ == "__main__":
    raise SystemExit(main())
