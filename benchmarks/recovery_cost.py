"""What refitting costs: `python benchmarks/recovery_cost.py [MODEL ...] [--images N] [--table]`.

Seconds and memory of `upscale.recover` on torchvision classifiers at 224², one thread. A process
of its own for each; memory is the most it held, less what it held with the model loaded, so the
images count too. Weights are random ones whose BatchNorms have seen the images. Each result is a
line of `benchmarks/results/recovery_cost.jsonl`; what is there is not measured again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.data import DATA, imagenet
from upscale import Recovery, recover, select
from upscale.model.batches import recalibrate
from upscale.zoo import torchvision_model

RECORDS = Path(__file__).resolve().parent / "results" / "recovery_cost.jsonl"
MODELS = ("resnet50",)
SHARE, BATCH = 0.3, 32
KIB = 2**10


@dataclass(frozen=True, slots=True)
class Cost:
    """What one model took; `beyond_mib` is the peak beyond the model itself.

    `cpu_seconds` are those that the processor worked for it, on a machine with other work.
    """

    model: str
    images: int
    share: float
    refitted: int
    seconds: float
    cpu_seconds: float
    beyond_mib: float


def measure(model: str, count: int, data: Path) -> Cost:
    """Refit a model in this process."""
    torch.set_num_threads(1)
    net = torchvision_model(model)
    before = _held_kib()
    pictures, _ = imagenet(data, range(count))
    batches = list(pictures.split(BATCH))
    net = recalibrate(net, batches[:2])
    selection = select(net, pictures[:1], amount=SHARE, importance="l1")
    began, worked = time.perf_counter(), time.process_time()
    recovered = recover(
        net, selection, batches, progress=lambda line: print(f"{model}: {line}", file=sys.stderr)
    )
    seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    told = Recovery.of(recovered)
    assert told is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Cost(model, len(pictures), SHARE, len(told.refits), seconds, cpu, (peak - before) / KIB)


def _held_kib() -> int:
    """What this process holds in memory now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError("the kernel does not say how much memory is held")


def records() -> list[Cost]:
    """What has been measured."""
    if not RECORDS.exists():
        return []
    return [Cost(**json.loads(line)) for line in RECORDS.read_text().splitlines()]


def section() -> str:
    """The records as a section of a page."""
    lines = [
        "## What it costs",
        "",
        f"torchvision classifiers at 224², one thread, {SHARE:.0%} of each layer's columns gone;",
        "memory beyond the model's own, images included (`python benchmarks/recovery_cost.py`).",
        "",
        "| model | images | layers | minutes of a core | by the clock | memory beyond |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {own.model} | {own.images} | {own.refitted} | {own.cpu_seconds / 60:.1f} | "
        f"{own.seconds / 60:.1f} | {own.beyond_mib / KIB:.1f} GiB |"
        for own in records()
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure what has no record yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    known = {(own.model, own.images) for own in records()}
    for model in () if arguments.table else arguments.models:
        if (model, arguments.images) in known:
            continue
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cost = pool.apply(measure, (model, arguments.images, arguments.data))
        with RECORDS.open("a") as file:
            file.write(json.dumps(asdict(cost)) + "\n")
    print(section())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
