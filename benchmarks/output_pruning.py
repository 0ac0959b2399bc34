"""What output pruning saves: `python benchmarks/output_pruning.py [--quick] [--write]`.

Every convolution and linear drops a share of the channels that it makes, each for itself, at
random; layers whose channels the caller reads drop nothing. Measured are how many of the channels
leave, the bytes copied, and the time of one call beside two others: the baseline that fills in
zeros before every sum (`order="none", sums="infill"`), and the zero-copy reference, which costs
what the same export would if no read copied, and computes WRONG NUMBERS
(`upscale.lab.zero_copy`).

All exports of a row are traced, frozen and called in turns, on one core; columns are medians.
BatchNorms are calibrated on noise first, and denormal numbers flushed to zero: they would slow
down whatever meets them. The program fails if a row misses what is asked.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean

import torch
from latency import scripted_like
from torch import Tensor, nn

import upscale
from upscale.lab.zero_copy import wrong_numbers_zero_copy
from upscale.model.layers import column_axis, layers, weight_of
from upscale.planning import Plan
from upscale.selection.importance import Random
from upscale.targets.racing import race_models
from upscale.zoo import torchvision_model

ROOT = Path(__file__).resolve().parent.parent
MODELS = (
    *("resnet18", "resnet50", "resnet101", "mobilenet_v2", "mnasnet1_3", "efficientnet_b1"),
    "densenet121",
)
QUICK = ("resnet18", "mobilenet_v2")
SHARES = (0.25, 0.75)
FORMATS = {"NCHW": torch.contiguous_format, "channels-last": torch.channels_last}
LEAST_REMOVED = 0.95
# Two exports of one function in float32 are this close, relative to the largest output.
CLOSE = 1e-3

EXPLANATION = """\
Every convolution and linear drops a share of the channels it makes, each for itself, at random
(`upscale.select(side="output", importance="random")`, which leaves alone the layers whose channels
the caller reads). *Masked* counts the channels dropped. A masked channel is zero after its layer's
BatchNorm, and so a constant wherever it is read: all of them may leave. *Removed* is the share that
the export does not compute; at least 95% is asked. What stays is one row of each gate, read for all
that are masked, and in channels-last a few channels that make blocks whole.

*MB copied* is `plan.copied_bytes`, *infill* the baseline that gives every operand of a sum zeros
for the channels it lacks, at run time, with channels in their own order (`order="none",
sums="infill"`). *Zero-copy* costs what the export would if no read gathered or copied by runs; it
computes wrong numbers. Concatenations stay in it. Times are medians over calls in turns, of traced
and frozen modules, one core, batch {batch}, {size} x {size} pixels; a ratio below one is faster."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model under one share of masks in one memory format."""

    model: str
    share: float
    memory_format: str
    masked: int
    removed: float
    copied_bytes: int
    infill_copied_bytes: int
    unpruned_ms: float
    export_ms: float
    infill_ms: float
    zero_copy_ms: float

    @property
    def against_infill(self) -> float:
        return self.export_ms / self.infill_ms

    @property
    def against_zero_copy(self) -> float:
        return self.export_ms / self.zero_copy_ms

    @property
    def holds(self) -> bool:
        """Whether the row has what is asked of it."""
        return self.removed >= LEAST_REMOVED and self.against_infill < 1


def removed_share(selection: upscale.Selection, model: nn.Module, plan: Plan) -> tuple[int, float]:
    """How many channels a selection masks, and the share of them that is not computed."""
    masked = sum(
        weight_of(layer).shape[1 - column_axis(layer)] - len(tuple(selection.kept[name]))
        for name, layer in layers(model).items()
        if name in selection.kept
    )
    staying = (*plan.zeros.values(), *plan.held.values())
    return masked, 1 - sum(map(len, staying)) / masked


def rows_of(name: str, share: float, arguments: argparse.Namespace) -> Iterator[Row]:
    """One model's rows at one share: one for each memory format."""
    torch.manual_seed(arguments.seed)
    model = torchvision_model(name)
    example = torch.randn(arguments.batch, 3, arguments.size, arguments.size)
    upscale.recalibrate(model, [torch.randn(8, 3, arguments.size, arguments.size)])
    importance = Random(torch.Generator().manual_seed(arguments.seed))
    selection = upscale.select(model, example, amount=share, importance=importance, side="output")
    for title, memory_format in FORMATS.items():
        given = example.to(memory_format=memory_format)
        model.to(memory_format=memory_format)  # type: ignore[call-overload]
        plan = upscale.plan(model, given, selection)
        infill = upscale.plan(model, given, selection, order="none", sums="infill")
        masked, removed = removed_share(selection, model, plan)
        models = {
            "unpruned": model,
            "export": upscale.export(model, plan),
            "infill": upscale.export(model, infill),
            "zero_copy": wrong_numbers_zero_copy(model, plan),
        }
        check_close(models["export"], models["infill"], given, f"{name}, {title}")
        taken = race_models(models, given, scripted_like(given), runs=arguments.runs)
        yield Row(
            model=name,
            share=share,
            memory_format=title,
            masked=masked,
            removed=removed,
            copied_bytes=plan.copied_bytes,
            infill_copied_bytes=infill.copied_bytes,
            **{f"{way}_ms": own.median_ms for way, own in taken.items()},
        )


@torch.inference_mode()
def check_close(export: nn.Module, infill: nn.Module, given: Tensor, where: str) -> None:
    """Raise unless two exports of one selection compute the same."""
    one, other = export(given), infill(given)
    error = float((one - other).abs().max() / other.abs().max())
    if not error <= CLOSE:
        raise SystemExit(f"{where}: the exports differ by {error:.1e}")


def as_table(rows: Sequence[Row]) -> str:
    """The rows in markdown."""
    header = ["model", "masks", "format", "masked", "removed", "MB copied", "infill: MB copied"]
    header += ["unpruned ms", "export ms", "infill ms", "zero-copy ms", "export ÷ infill"]
    header += ["export ÷ zero-copy"]
    lines = [header, ["---"] * len(header)]
    for row in rows:
        times = (row.unpruned_ms, row.export_ms, row.infill_ms, row.zero_copy_ms)
        ratios = (row.against_infill, row.against_zero_copy)
        lines.append(
            [
                *(row.model, f"{row.share:.0%}", row.memory_format, f"{row.masked:,}"),
                *(f"{row.removed:.1%}", f"{row.copied_bytes / 1e6:.2f}"),
                f"{row.infill_copied_bytes / 1e6:.2f}",
                *(f"{milliseconds:.1f}" for milliseconds in times),
                *(f"{ratio:.2f}" for ratio in ratios),
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def findings(rows: Sequence[Row]) -> str:
    """What can be read off the rows."""
    held = sum(row.holds for row in rows)
    fewest = min(rows, key=lambda row: row.removed)
    slowest = max(rows, key=lambda row: row.against_infill)
    ratios: dict[str, list[float]] = {}
    for row in rows:
        ratios.setdefault(row.memory_format, []).append(row.against_infill)
    means = ", ".join(f"{geometric_mean(own):.3f} in {memory}" for memory, own in ratios.items())
    return (
        f"{held} of {len(rows)} rows have at least {LEAST_REMOVED:.0%} of the masked channels "
        f"removed and are faster than the baseline. Fewest removed: {fewest.removed:.1%} "
        f"({fewest.model}, {fewest.share:.0%}). Slowest beside the baseline: "
        f"{slowest.against_infill:.2f} ({slowest.model}, {slowest.share:.0%}, "
        f"{slowest.memory_format}). Geometric means beside it: {means}."
    )


def about(arguments: argparse.Namespace) -> dict[str, object]:
    """Where and when the numbers were measured."""
    return {
        "date": datetime.date.today().isoformat(),
        "machine": processor(),
        "torch": torch.__version__,
        "upscale": upscale.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "runs": arguments.runs,
        "batch": arguments.batch,
        "size": arguments.size,
        "seed": arguments.seed,
    }


def processor() -> str:
    """The processor's name, where the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def page(rows: Sequence[Row], facts: Mapping[str, object]) -> str:
    """The page for the documentation."""
    return "\n\n".join(
        (
            "# Output pruning",
            f"Written by `python benchmarks/output_pruning.py --write` on {facts['date']}: "
            f"{facts['machine']}, torch {facts['torch']}, Python {facts['python']}, one thread, "
            f"{facts['runs']} calls behind each median.",
            EXPLANATION.format(**facts),
            as_table(rows),
            findings(rows),
        )
    )


def main() -> int:
    """Measure; print the table, and write it where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="torchvision's names")
    parser.add_argument("--quick", action="store_true", help="two models, few runs")
    parser.add_argument("--runs", type=int, default=30, help="calls behind each median")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write the page and the record")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.runs = min(arguments.runs, 5)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rows = []
    for name in arguments.models or (QUICK if arguments.quick else MODELS):
        for share in SHARES:
            for row in rows_of(name, share, arguments):
                rows.append(row)
                print(as_table([row]).splitlines()[-1], flush=True)
    facts = about(arguments)
    text = page(rows, facts)
    print(text)
    if arguments.write:
        (ROOT / "docs" / "output-pruning.md").write_text(text + "\n")
        record = {"about": facts, "rows": [asdict(row) for row in rows]}
        path = ROOT / "benchmarks" / "results" / "output_pruning.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
