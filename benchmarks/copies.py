"""What orders save: `python benchmarks/copies.py [--quick] [--data DIR] [--json PATH] [--write]`.

Copies, bytes and runs with `order="none"`, `"mrap"` and `"optimal"` side by side. Two tables:
masks with structure, from the weights of trained CIFAR-10 ResNets, and independent random masks
on torchvision's architectures. Only plans are made; tests prove that exports copy what plans say.
The program fails if the optimal order ever copies more bytes than the paper's.

Inputs are pruned: every convolution and linear but the one that reads the image. *Local* drops the
same share of each layer's channels. *Global* divides a layer's scores by their mean and drops the
share of all channels that score lowest, whichever layers they are in; each layer keeps one at
least.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from cifar import trained
from data import DATA
from torch import Tensor, fx, nn

import upscale
from upscale.channels import positions
from upscale.model.layers import columns, layers
from upscale.planning import Edge, Plan
from upscale.planning.layouts import runs
from upscale.planning.plan import origin_of
from upscale.zoo import torchvision_model

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # where `trials` is

from trials.masks import random_selection  # noqa: E402

ORDERS = ("none", "mrap", "optimal")
DEPTHS = (20, 32, 44, 56)
SHARES = (0.05, 0.10, 0.25, 0.50)
# Reads of layers that still copy with the paper's own code, quoted from the project's issue.
REFERENCE = {
    "densenet121": "57 of 120",
    "googlenet": "34 of 56",
    "inception_v3": None,
    "resnet50": "10 of 53",
    "resnet18": "4 of 20",
    "mobilenet_v2": None,
}

EXPLANATION = """\
Cells with slashes read `none / mrap / optimal`. *Reads* are the layers whose inputs are pruned,
*copies* the reads of any node, additions included, that gather or copy by runs, *of layers* those
among them whose reader is a convolution or linear (in DenseNet, normalisations read first). *MB
copied* is `plan.copied_bytes` at batch 1 in float32: gathers, copies by runs, and what
concatenations write beyond the unpruned model's, which the next column shows on its own. *Runs*
are the stretches of channels side by side of which all reads that copy or concatenate are put
together. *MB left apart* is what the ordering problem itself costs: the bytes of the sets that are
not contiguous, with the proven lower bound. A plan may copy less, because one copy can serve
several of these reads, or more, because reads of concatenated channels weigh next to nothing in
it. *Seconds* are whole calls of `upscale.plan`, capture included, wall clock on one thread of a
machine with other work. The reference code's numbers are quoted, for masks of its own.

Inputs are pruned: every convolution and linear but the one that reads the image. *Local* drops
the same share of each layer's channels. *Global* divides a layer's scores by their mean and drops
the share of all channels that score lowest, whichever layers they are in; each layer keeps at
least one."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """What one order gives: reads that copy, those of layers among them, and what they cost.

    `runs` are the stretches of channels side by side of which the reads that copy or concatenate
    are put together. `cost` is the bytes of the reads the order leaves apart; no order leaves
    less than `lower_bound`, `None` for an order that was not searched for.
    """

    copies: int
    layers_copying: int
    copied_bytes: int
    concatenations: int
    concatenated_bytes: int
    runs: int
    cost: float | None
    lower_bound: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One model under one selection, planned with every order."""

    model: str
    masks: str
    reads: int
    unpruned_concatenated_bytes: int
    by_order: dict[str, Ordered]


def make_row(
    name: str, masks: str, model: nn.Module, example: Tensor, selection: upscale.Selection
) -> Row:
    """Plan with every order, and measure each plan."""
    by_order = {}
    for order in ORDERS:
        start = time.perf_counter()
        plan = upscale.plan(model, example, selection, order=order, widen=False)
        by_order[order] = measure(plan, time.perf_counter() - start)
    return Row(name, masks, len(selection.kept), plan.report.unpruned_concatenated_bytes, by_order)


def measure(plan: Plan, seconds: float) -> Ordered:
    """The numbers of one plan."""
    everything = (*plan.graph.edges, *plan.graph.joins)
    readers = {node.name for node in graph_of(plan).nodes if f"{node.target}.weight" in plan.kept}
    searched = plan.order != "none"
    return Ordered(
        copies=plan.copies,
        layers_copying=sum(bool(e.copied_bytes) and e.node in readers for e in plan.graph.edges),
        copied_bytes=plan.copied_bytes,
        concatenations=sum(edge.kind == "concat" for edge in everything),
        concatenated_bytes=sum(edge.concatenated_bytes for edge in everything),
        runs=sum(stretches(edge) for edge in everything if edge.kind != "slice"),
        cost=plan.report.order_cost if searched else None,
        lower_bound=plan.lower_bound if plan.order == "optimal" else None,
        seconds=seconds,
    )


def graph_of(plan: Plan) -> fx.Graph:
    """The graph a plan was made for."""
    if origin_of(plan) is None:
        raise TypeError("the plan has lost its model")
    return origin_of(plan).captured.graph


def stretches(edge: Edge) -> int:
    """Of how many stretches of channels side by side an edge is put together."""
    return sum(
        1 if piece.indices is None else len(runs(positions(piece.indices))) for piece in edge.pieces
    )


def trained_rows(data: Path, quick: bool) -> Iterator[Row]:
    """Masks with structure: trained ResNets, two criteria, two scopes, four shares."""
    example = torch.zeros(1, 3, 32, 32)
    for depth in DEPTHS[:1] if quick else DEPTHS:
        model = trained(depth, data)
        for importance in ("l1", "l2"):
            for scope in ("local", "global"):
                for share in SHARES[1:3] if quick else SHARES:
                    masks = f"{importance.upper()} {scope} {share:.0%}"
                    selection = upscale.select(
                        model, example, amount=share, importance=importance, scope=scope
                    )
                    yield make_row(f"ResNet-{depth}", masks, model, example, selection)


def random_rows(quick: bool) -> Iterator[Row]:
    """Independent random masks at 25%."""
    for name in ("resnet18", "mobilenet_v2") if quick else REFERENCE:
        heads = {"aux_logits": False, "init_weights": False}
        options = heads if name in ("googlenet", "inception_v3") else {}
        model = torchvision_model(name, **options)
        size = 299 if name == "inception_v3" else 224
        example = torch.zeros(1, 3, size, size)
        _, *rest = layers(model).items()
        among = [name for name, layer in rest if columns(layer) > 1]  # depthwise ones stay whole
        selection = random_selection(model, 0.25, seed=0, even=True, among=among)
        yield make_row(name, "random 25%", model, example, selection)


def as_table(rows: Sequence[Row]) -> str:
    """The rows in markdown; cells hold `none / mrap / optimal`."""
    header = ["model", "masks", "reads", "copies", "of layers", "MB copied"]
    header += ["MB concatenated beyond", "runs", "MB left apart: mrap / optimal (bound)", "seconds"]
    reference = all(row.model in REFERENCE for row in rows)
    header += ["reference code: reads copying"] if reference else []
    lines = [header, ["---"] * len(header)]
    for row in rows:
        orders = [row.by_order[order] for order in ORDERS]
        _, mrap, optimal = orders
        cells = [row.model, row.masks, str(row.reads)]
        cells.append(" / ".join(str(o.copies) for o in orders))
        cells.append(" / ".join(str(o.layers_copying) for o in orders))
        cells.append(" / ".join(megabytes(o.copied_bytes) for o in orders))
        beyond = (o.concatenated_bytes - row.unpruned_concatenated_bytes for o in orders)
        cells.append(" / ".join(megabytes(max(0, count)) for count in beyond))
        cells.append(" / ".join(str(o.runs) for o in orders))
        bound = megabytes(optimal.lower_bound)
        cells.append(f"{megabytes(mrap.cost)} / {megabytes(optimal.cost)} ({bound})")
        cells.append(" / ".join(f"{o.seconds:.1f}" for o in orders))
        if reference:
            cells.append(REFERENCE[row.model] or "–")
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def megabytes(count: float | None) -> str:
    """Bytes as megabytes, short."""
    return "–" if count is None else f"{count / 1e6:.3f}"


def surprises(rows: Sequence[Row]) -> list[str]:
    """Rows in which the optimal order copies more bytes than another, or less than its bound."""
    found = []
    for row in rows:
        optimal = row.by_order["optimal"]
        where = f"{row.model}, {row.masks}: `optimal` copies {megabytes(optimal.copied_bytes)} MB"
        for order in ("none", "mrap"):
            other = row.by_order[order].copied_bytes
            if optimal.copied_bytes > other:
                found.append(f"{where}, `{order}` {megabytes(other)} MB.")
    return found


def page(tables: dict[str, str], rows: Sequence[Row]) -> str:
    """The page for the documentation."""
    return "\n\n".join(
        (
            "# Copies, bytes and runs",
            f"Written by `python benchmarks/copies.py --write` on {datetime.date.today()}.",
            EXPLANATION,
            *(f"## {title}\n{table}" for title, table in tables.items()),
            "## What the rows show\n" + "\n".join(f"- {line}" for line in findings(rows)),
        )
    )


def findings(rows: Sequence[Row]) -> list[str]:
    """What can be read off the rows."""
    lines = []
    for kind in ("local", "global", "random"):
        chosen = [row for row in rows if kind in row.masks]
        if not chosen:
            continue
        copied = [sum(row.by_order[o].copied_bytes for row in chosen) for o in ORDERS]
        counts = [sum(row.by_order[o].copies for row in chosen) for o in ORDERS]
        free = sum(row.by_order["optimal"].copies == 0 for row in chosen)
        least = sum(proven(row) for row in chosen)
        lines.append(
            f"{kind} masks, {len(chosen)} rows: {' / '.join(map(megabytes, copied))} MB copied and "
            f"{' / '.join(map(str, counts))} copies in all; `optimal` copies nothing in {free} "
            f"of the rows and its order is proven the cheapest in {least}."
        )
    below = sum(below_bound(row) for row in rows)
    lines.append(
        f"In {below} of {len(rows)} rows the plan copies less than its `lower_bound`: the bound is "
        "on the cost of the order, which counts reads of a tensor's every channel (free whatever "
        "the order) and reads of what an addition has copied together already."
    )
    return lines + (surprises(rows) or ["`optimal` never copies more bytes than another order."])


def proven(row: Row) -> bool:
    """Whether the optimal order is proven to be one."""
    optimal = row.by_order["optimal"]
    return optimal.cost is not None and optimal.cost <= (optimal.lower_bound or 0.0) * (1 + 1e-9)


def below_bound(row: Row) -> bool:
    """Whether a plan copies less than it says any order must."""
    optimal = row.by_order["optimal"]
    return optimal.copied_bytes < round(optimal.lower_bound or 0.0)


def worse_than_mrap(rows: Sequence[Row]) -> list[Row]:
    """Rows in which the optimal order copies more than the paper's. There must be none."""
    return [
        row
        for row in rows
        if row.by_order["optimal"].copied_bytes > row.by_order["mrap"].copied_bytes
    ]


def main() -> int:
    """Make the tables; print them, and write them where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and smaller models")
    parser.add_argument("--data", type=Path, default=DATA, help="weights")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--write", action="store_true", help="write docs/copies.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[Row]] = {}
    if (arguments.data / f"resnet{DEPTHS[0]}-cifar10.safetensors").exists():
        title = "Masks with structure: trained CIFAR-10 ResNets"
        found[title] = list(trained_rows(arguments.data, arguments.quick))
    else:
        print("no trained ResNets there, so that table is left out; see --data")
    found["Independent random masks"] = list(random_rows(arguments.quick))
    tables = {title: as_table(rows) for title, rows in found.items()}
    rows = [row for each in found.values() for row in each]
    text = page(tables, rows)
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    if arguments.write:
        (ROOT / "docs" / "copies.md").write_text(text + "\n")
    worse = worse_than_mrap(rows)
    for row in worse:
        print(f"{row.model}, {row.masks}: the optimal order copies more than mrap's")
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
