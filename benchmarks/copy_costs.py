"""What fetching channels costs: `python benchmarks/copy_costs.py [--write]`.

End to end: a quarter of every layer's input channels goes at random, and every read that is no
slice is done in one way: by runs, by a gather on the channel axis, by a gather from the matrix of
places by channels, or widened to a slice, with zero weights for what is not kept. The zero-copy
reference reads slices everywhere, and computes wrong numbers. Then single layers: how long a
convolution takes as its outputs depart from whole blocks. One core, medians, ratios within a race.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import platform
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from export import random_selection
from latency import FORMATS, prepared, scripted_like
from torch import Tensor, nn
from torch.nn import functional as F

import upscale
from upscale.api import plan_for
from upscale.lab.zero_copy import wrong_numbers_zero_copy
from upscale.planning import Edge, Plan, Way
from upscale.subject import Subject
from upscale.targets.prices import BUILT_IN, Prices
from upscale.targets.racing import race, race_models
from upscale.targets.runtime import target_like
from upscale.targets.target import Pricing

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("densenet121", "resnet50", "mobilenet_v2")
DEAR = 1e6


def with_copies(**prices: float) -> Prices:
    """The built-in prices with other prices of copies."""
    ways = (replace(way, **prices) for way in (BUILT_IN.outer, BUILT_IN.inner))
    outer, inner = ways
    return replace(BUILT_IN, outer=outer, inner=inner)


def planned(model: nn.Module, example: Tensor, prices: Prices, *, widen: bool) -> Plan:
    """A plan for random masks of 25%, at given prices."""
    subject = Subject.of(model, example)
    pricing = Pricing(target_like(subject.example), prices)
    selection = random_selection(model, 0.25, seed=0, even=True)
    return plan_for(subject, (selection,), Way("optimal", pricing, widen=widen))


def in_rows(plan: Plan, *, rows: bool) -> Plan:
    """The plan with every gather in one form."""

    def changed(edge: Edge) -> Edge:
        pieces = (replace(p, rows=rows) if p.indices else p for p in edge.pieces)
        return replace(edge, pieces=tuple(pieces))

    edges, joins = (
        tuple(changed(edge) for edge in own) for own in (plan.graph.edges, plan.graph.joins)
    )
    return replace(plan, graph=replace(plan.graph, edges=edges, joins=joins))


def end_to_end(runs: int) -> Iterator[list[str]]:
    """A row for each model, format and batch."""
    for name, memory, batch in itertools.product(MODELS, FORMATS, (1, 8)):
        model = prepared(name)
        example = torch.randn(batch, 3, 224, 224).contiguous(memory_format=FORMATS[memory])
        gathers = planned(model, example, with_copies(run_row=DEAR), widen=False)
        by_runs = planned(model, example, with_copies(gather_byte=DEAR), widen=False)
        dear = with_copies(gather_byte=DEAR, run_byte=DEAR)
        contestants = {
            "unpruned": model,
            "zero-copy": wrong_numbers_zero_copy(model, gathers),
            "runs": upscale.export(model, by_runs),
            "gather, axis": upscale.export(model, in_rows(gathers, rows=False), example),
            "gather, rows": upscale.export(model, in_rows(gathers, rows=True), example),
            "widened": upscale.export(model, planned(model, example, dear, widen=True)),
        }
        taken = race_models(contestants, example, scripted_like(example), runs=runs)
        base = taken["zero-copy"].median_ms
        yield [
            name,
            memory,
            str(batch),
            *(f"{own.median_ms / base:.2f}" for n, own in taken.items() if n != "zero-copy"),
        ]


def tails(runs: int) -> Iterator[list[str]]:
    """How long convolutions take whose outputs are no whole blocks, next to 64 outputs."""
    widths = (56, 57, 59, 60, 61, 63, 64)
    for memory, kernel, side in itertools.product(FORMATS, (1, 3), (14, 28, 56)):
        x = torch.randn(1, 64, side, side).contiguous(memory_format=FORMATS[memory])
        calls = {
            str(width): partial(
                F.conv2d,
                x,
                torch.randn(width, 64, kernel, kernel).contiguous(memory_format=FORMATS[memory]),
                padding=kernel // 2,
            )
            for width in widths
        }
        taken = race(calls, runs=runs)
        whole = taken["64"].median_ms
        ratios = (f"{taken[str(width)].median_ms / whole:.2f}" for width in widths)
        yield [memory, f"{kernel}×{kernel}", f"{side}×{side}", *ratios]


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Rows in markdown."""
    return [
        f"| {' | '.join(header)} |",
        f"| {' | '.join('---' for _ in header)} |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def main() -> int:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=15, help="runs behind each median")
    parser.add_argument("--write", action="store_true", help="write docs/copy-costs.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    capability = torch.backends.cpu.get_cpu_capability()
    ways = ["÷ zero-copy: unpruned", "runs", "gather, axis", "gather, rows", "widened"]
    lines = [
        "# What fetching channels costs",
        "",
        "Written by `python benchmarks/copy_costs.py --write` "
        f"({platform.machine()}, {capability}, torch {torch.__version__}, "
        f"{datetime.date.today().isoformat()}).",
        "",
        "Random masks of 25%; every read that is no slice in one way, as a ratio to the zero-copy",
        "reference of the same race.",
        "",
        *table(["model", "format", "batch", *ways], list(end_to_end(arguments.runs))),
        "",
        "A convolution of 64 inputs with so many outputs, next to one with 64:",
        "",
        *table(
            ["format", "kernel", "image", "56", "57", "59", "60", "61", "63", "64"],
            list(tails(2 * arguments.runs)),
        ),
        "",
    ]
    print("\n".join(lines))
    if arguments.write:
        (ROOT / "docs" / "copy-costs.md").write_text("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
