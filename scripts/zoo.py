"""Prune every torchvision classifier and hold each export against its masked model: `make zoo`.

Each model gets a process of its own, with random weights and channels that all differ. Every
convolution and linear drops 25% of its columns at random, then 75% (with `--empty` a tenth of
the layers keep nothing, once more). Both models are scaled so that the output follows the input
through all layers, then compared in float64 on two images, where possible of another shape than
the example of the plan. A row fails if an export is not exact, if the masked model's output does
not tell two images apart, if a plan takes more than 60 seconds, or if the process fails or takes
too long.

    python scripts/zoo.py                          # all, into docs/zoo.md and docs/zoo.json
    python scripts/zoo.py --models resnet18,swin_t # some, on the screen only
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, fx, nn

import upscale
from upscale.capture import Captured, Example, capture
from upscale.flow.analyse import analyse
from upscale.flow.domain import ChannelFlow, Reduce, Step
from upscale.layers import column_axis, columns, layers, weight_names, weight_of
from upscale.segments import find_live
from upscale.verify import TOLERANCE, compare
from upscale.zoo import import_torchvision, torchvision_model

DOCS = Path(__file__).parents[1] / "docs"
SIZES = (64, 96, 224)
MOST_PLAN_SECONDS = 60.0
LEAST_VARIATION = 1e-2
EMPTY_SHARE = 0.1
CALIBRATION_IMAGES = 4
NUDGE = 1e-15
MOST_RESPONSE = 1e-12
OFFSETS = (0.5, 1.0, 2.0, 4.0)

Shape = tuple[int, ...]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Case:
    """A share of columns that every layer drops; some layers drop all of them if `empty`."""

    share: float
    empty: bool = False

    @property
    def name(self) -> str:
        return f"{self.share:.0%}, some empty" if self.empty else f"{self.share:.0%}"


CASES = (Case(0.25), Case(0.75))
EMPTY_CASE = Case(0.25, empty=True)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case of one model gave.

    `variation` is how far the masked model's outputs for different images are apart, relative to
    their size. `reads` counts the uses of a tensor with channels by an operation of the export,
    `copies` those of them that gather or copy by runs.
    """

    case: str
    status: str
    relative_error: float
    variation: float
    layers_pruned: int
    parameters_left: float
    copies: int
    reads: int
    plan_seconds: float
    export_seconds: float


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What one model gave: what can be pruned of it, and its cases.

    `prunable` is the share of the weights of convolutions and linears that lie in prunable
    layers (see `prunable_weights`), `frozen` the share of all parameters that an operation
    without a rule keeps whole, by operation. Layers that evaluation never reaches count in
    neither.
    """

    model: str
    example: Shape
    compared: Shape
    layers: int
    unreached: int
    prunable: float
    frozen: Mapping[str, float]
    cases: tuple[CaseResult, ...]
    peak_mib: float


# One model, in a process of its own


def try_model(name: str, cases: Iterable[Case], seed: int) -> ModelResult:
    """Prune one model in every case and compare."""
    model = make_model(name, seed)
    sizes = (*SIZES, *native_sizes(name))
    example = accepted(model, ((1, 3, size, size) for size in sizes))
    height, width = example[2:]
    compared = accepted(model, ((2, 3, height, width + 32), (2, 3, height, width)))
    captured = capture(model, Example.of(torch.randn(example)))
    flow = analyse(captured)
    read = {value for step in flow.steps for value in step.reads}
    unreached = {f"@{weight}" for weight in weights_of(model)} - read
    count = len(weights_of(model)) - len(unreached)
    prunable = prunable_share(model, flow, unreached)
    frozen = frozen_shares(model, captured, flow, unreached)
    del model
    results = []
    for case in cases:
        results.append(try_case(name, case, seed, flow, example, compared))
        gc.collect()
    return ModelResult(
        model=name,
        example=example,
        compared=compared,
        layers=count,
        unreached=len(unreached),
        prunable=prunable,
        frozen=frozen,
        cases=tuple(results),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def try_case(
    name: str, case: Case, seed: int, flow: ChannelFlow, example: Shape, compared: Shape
) -> CaseResult:
    """Prune in one case, and compare.

    Models that are done with are collected at once, here and after: graph modules hold on to
    themselves, and the largest models leave no room for another copy.
    """
    pruned = prune(name, case, seed, example)
    gc.collect()
    exported, masked, plan = pruned.exported, pruned.masked, pruned.plan
    error = compare(exported, masked, Example.of(images(compared))).relative_error
    left = dict(exported.named_parameters())
    before = dict(masked.named_parameters())
    weights = weights_of(masked).keys() - set(plan.unreached)
    return CaseResult(
        case=case.name,
        status=judge(case, error, pruned),
        relative_error=error,
        variation=pruned.variation,
        layers_pruned=sum(w not in left or left[w].numel() < before[w].numel() for w in weights),
        parameters_left=sum(p.numel() for p in left.values())
        / sum(p.numel() for p in before.values()),
        copies=plan.copies,
        reads=reads_left(flow, plan),
        plan_seconds=pruned.plan_seconds,
        export_seconds=pruned.export_seconds,
    )


@dataclass(frozen=True, slots=True)
class Pruned:
    """A model exported and masked, and how that went."""

    exported: nn.Module
    masked: nn.Module
    plan: upscale.Plan
    variation: float
    plan_seconds: float
    export_seconds: float


def prune(name: str, case: Case, seed: int, example: Shape) -> Pruned:
    """Select, plan, export and mask; the model itself goes before its float64 copies come."""
    for offset in OFFSETS:
        model = make_model(name, seed)
        selection = random_selection(model, case, seed)
        variation = enliven(model, selection, example, offset)
        if response(model, selection, example) <= MOST_RESPONSE:
            break
    plan, plan_seconds = timed(lambda: upscale.plan(model, torch.randn(example), selection))
    exported, export_seconds = timed(lambda: upscale.export(model, plan))
    masked = upscale.mask(model, selection)
    return Pruned(exported, masked, plan, variation, plan_seconds, export_seconds)


def judge(case: Case, error: float, pruned: Pruned) -> str:
    """`exact`, or what is wrong: `wrong`, `constant` (so nothing is shown) or `slow`."""
    if not error <= TOLERANCE:
        return "wrong"
    # Layers that keep nothing may leave an output that does not depend on the input.
    if not (case.empty or pruned.variation >= LEAST_VARIATION):
        return "constant"
    return "exact" if pruned.plan_seconds <= MOST_PLAN_SECONDS else "slow"


def make_model(name: str, seed: int) -> nn.Module:
    """A model with random weights and channels that all differ; the same for the same seed."""
    torch.manual_seed(seed)
    model = torchvision_model(name)
    tell_channels_apart(model)
    return model


def timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """What an action gives and the seconds it took."""
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start


def native_sizes(name: str) -> tuple[int, ...]:
    """The image sizes that a model's published weights were made for, smallest first."""
    weights = import_torchvision().models.get_model_weights(name)
    return tuple(sorted({weight.transforms.keywords["crop_size"] for weight in weights}))


def accepted(model: nn.Module, shapes: Iterable[Shape]) -> Shape:
    """The first shape of input that a model takes."""
    complaints = []
    for shape in shapes:
        try:
            with torch.inference_mode():
                model(torch.randn(shape))
        except Exception as error:  # a model may refuse a size by any exception
            complaints.append(f"{shape}: {error}")
        else:
            return shape
    raise SystemExit("the model takes none of " + "; ".join(complaints))


@torch.no_grad()
def tell_channels_apart(model: nn.Module) -> None:
    """Draw every parameter whose entries are all equal: norms, scales, zero biases, tokens."""
    for parameter in model.parameters():
        first = parameter.flatten()[0]
        if bool((parameter == first).all()):
            if first == 0:
                parameter.normal_(std=0.5)
            else:
                parameter.uniform_(0.5, 2)


@torch.no_grad()
def response(model: nn.Module, selection: upscale.Selection, example: Shape) -> float:
    """How far the masked model's output moves when its input moves by one rounding.

    Rounding differs between any two ways to compute one function. Where the function itself
    makes more of it than the tolerance, two models cannot be told apart by comparing them.
    """
    masked = upscale.mask(model, selection).double()
    inputs = images((2, *example[1:])).double()
    plain, moved = masked(inputs), masked(inputs * (1 + NUDGE))
    return float((plain - moved).abs().max() / plain.abs().max())


@torch.no_grad()
def enliven(
    model: nn.Module, selection: upscale.Selection, example: Shape, offset: float = 0.5
) -> float:
    """Scale a model so that the masked one's output follows its input; tell how far it does.

    As it is, the input's share in the output would shrink with every layer, until all that two
    models are compared by is a sum of biases. Layers are scaled to outputs of variance one and
    BatchNorm gets the statistics of what it reads, each channel's mean off by some of its own:
    the further, the calmer a deep network. What the mask hides is drawn anew, far from zero.
    """
    masked = upscale.mask(model, selection)
    for module in masked.modules():
        if isinstance(module, (nn.modules.conv._ConvNd, nn.Linear)):
            module.register_forward_hook(_scale_layer)
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.register_forward_pre_hook(partial(_shift_norm, offset))
    outputs = masked(images((CALIBRATION_IMAGES, *example[1:])))
    model.load_state_dict(masked.state_dict())
    for name, kept in selection.kept.items():
        layer = model.get_submodule(name)
        gone = torch.tensor(sorted(set(range(columns(layer))).difference(kept)), dtype=torch.long)
        weight = weight_of(layer)
        fill = torch.randn_like(weight.index_select(column_axis(layer), gone))
        weight.index_copy_(column_axis(layer), gone, fill * weight.std())
    return float((outputs - outputs.mean(0)).abs().max() / outputs.abs().max())


def _scale_layer(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    channels = -1 if isinstance(layer, nn.Linear) else 1
    spread = output.movedim(channels, 0).flatten(1).var(1).mean().sqrt()
    if not bool(spread > 0):
        return output
    weight_of(layer).div_(spread)
    if not isinstance(layer.bias, Tensor):
        return output / spread
    bias = layer.bias
    if channels == 1:
        bias = bias.view(-1, *[1] * (output.dim() - 2))
    return (output - bias) / spread + bias


def _shift_norm(offset: float, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    variance, mean = torch.var_mean(inputs[0].transpose(0, 1).flatten(1), dim=1)
    # A channel that hardly varies over these images must not blow up over others.
    variance = variance.clamp_min(variance.mean() / 10)
    assert isinstance(norm.running_mean, Tensor)
    assert isinstance(norm.running_var, Tensor)
    norm.running_mean.copy_(mean + variance.sqrt() * torch.randn_like(mean) * offset)
    norm.running_var.copy_(variance * (torch.rand_like(variance) + 0.5))


def images(shape: Shape) -> Tensor:
    """Noise whose level and strength differ from image to image, so that their means do too."""
    strength, level = torch.rand(shape[0], 3, 1, 1) + 0.5, torch.randn(shape[0], 3, 1, 1)
    return torch.randn(shape) * strength + level


def random_selection(model: nn.Module, case: Case, seed: int) -> upscale.Selection:
    """Every layer drops the case's share of its columns; at least one stays, unless `empty`."""
    generator = random.Random(f"{seed} {case.name}")
    names = weight_names(model)
    by_weight: dict[str, list[int]] = {}
    for name, layer in layers(model).items():
        count = columns(layer)
        staying = max(1, count - round(case.share * count))
        if case.empty and generator.random() < EMPTY_SHARE:
            staying = 0
        by_weight.setdefault(names[name], generator.sample(range(count), staying))
    if case.empty and all(by_weight.values()):
        by_weight[generator.choice(sorted(by_weight))] = []
    return upscale.Selection(kept={name: by_weight[names[name]] for name in layers(model)})


def reads_left(flow: ChannelFlow, plan: upscale.Plan) -> int:
    """How often an operation of the export reads a tensor that has channels."""
    return len(plan.joins) + sum(
        not value.startswith("@") and bool(flow.lines_of(value))
        for step in flow.steps
        if step.executed and not step.shape_only and step.node not in plan.gone
        for value in step.reads
    )


# What can be pruned at all


def prunable_weights(flow: ChannelFlow) -> frozenset[str]:
    """The weights of prunable layers.

    A layer is prunable if a rule knows it for a convolution or linear (a `Reduce` has its
    weight), and wherever it is used its columns or its rows can leave. Columns can leave if the
    axis they contract is a line: channels are told apart there, so a column takes its channel
    along if nobody else reads that. (Columns that read a frozen tensor or the model's input
    leave too, but only the layer shrinks; they do not count.) Rows can leave if not all of them
    are live when every layer drops all its columns: then nothing but other layers' weights needs
    them. A depthwise convolution has one column, which is its row: only the row counts.
    """
    reductions = [r for step in flow.steps for r in step.relations if isinstance(r, Reduce)]
    nothing = np.empty(0, dtype=np.int64)
    needed = find_live(flow, {r.layer: nothing for r in reductions}).lines
    stuck = {
        r.layer
        for r in reductions
        if (r.channelwise or r.read not in flow.classes) and needed[r.out].all()
    }
    return frozenset({r.layer for r in reductions} - stuck)


def prunable_share(model: nn.Module, flow: ChannelFlow, unreached: set[str]) -> float:
    """The share of convolution and linear weights, of those reached, in prunable layers."""
    prunable = prunable_weights(flow)
    sizes = {f"@{weight}": weight_of(layer).numel() for weight, layer in weights_of(model).items()}
    reached = {weight: size for weight, size in sizes.items() if weight not in unreached}
    return sum(n for w, n in reached.items() if w in prunable) / sum(reached.values())


def frozen_shares(
    model: nn.Module, captured: Captured, flow: ChannelFlow, unreached: set[str]
) -> dict[str, float]:
    """The share of all parameters that stays whole, by the operation that keeps it so.

    A parameter stays whole where a frozen step, or one no rule relates to any channel, reads it.
    A layer that a rule knows and that is not prunable all the same lies behind such a step, the
    nearest of which it counts for, or else at the model's input.
    """
    nodes = {node.name: node for node in captured.graph.nodes}
    makers = {value: step for step in flow.steps for value in step.makes}
    causes: dict[str, str] = {}
    for step in flow.steps:
        if step.frozen or not step.relations:
            operation = _operation(captured, nodes[step.node])
            causes |= {value: operation for value in step.reads if value.startswith("@")}
    prunable = prunable_weights(flow)
    for step in flow.steps:
        for relation in step.relations:
            if isinstance(relation, Reduce) and relation.layer not in prunable:
                cause = _freezer(makers, relation.read.value)
                operation = _operation(captured, nodes[cause.node]) if cause else "the input"
                causes.setdefault(relation.layer, operation)
    sizes = {f"@{name}": parameter.numel() for name, parameter in model.named_parameters()}
    total = sum(size for name, size in sizes.items() if name not in unreached)
    shares: Counter[str] = Counter()
    for name, operation in causes.items():
        shares[operation] += sizes.get(name, 0)
    return {operation: size / total for operation, size in shares.most_common() if size}


def _freezer(makers: Mapping[str, Step], value: str) -> Step | None:
    """The nearest frozen step that a value comes from, or else the step that made it."""
    front = [value]
    for reached in front:
        maker = makers.get(reached)
        if maker is not None:
            if maker.frozen:
                return maker
            front += [v for v in maker.reads if v not in front and not v.startswith("@")]
    return makers.get(value)


def _operation(captured: Captured, node: fx.Node) -> str:
    """What a node does, in a word: its one operation, or the function or module that has many."""
    operations = list(dict.fromkeys(call.op for call in captured.observed[node.name].calls))
    if len(operations) == 1:
        return operations[0]
    if node.op == "call_module":
        return captured.kinds[str(node.target)]
    return str(getattr(node.target, "__name__", node.target))


def weights_of(model: nn.Module) -> dict[str, nn.Module]:
    """One layer of each weight, by the weight's name."""
    names = weight_names(model)
    return {names[name]: layer for name, layer in reversed(layers(model).items())}


# All models, one process each


def run_one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Try a model in a process of its own; failures come back as rows too."""
    command = [sys.executable, __file__, "--one", name, "--seed", str(arguments.seed)]
    if arguments.empty:
        command.append("--empty")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=arguments.timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "status": "timeout", "error": f"over {arguments.timeout:.0f} s"}
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        error = said[-1] if said else f"exit status {done.returncode}"
        if done.returncode < 0:
            error = f"killed by signal {-done.returncode}; {error}"
        return {"model": name, "status": "crash", "error": error}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"status": status_of(row), **row}


def status_of(row: Mapping[str, Any]) -> str:
    """`exact` if every case is, else what the first other one is."""
    return next((c["status"] for c in row["cases"] if c["status"] != "exact"), "exact")


def run_all(names: list[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows in the order of the names; progress goes to stderr."""
    rows: dict[str, dict[str, Any]] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        running = [pool.submit(run_one, name, arguments) for name in names]
        for done in as_completed(running):
            row = done.result()
            rows[row["model"]] = row
            print(f"{len(rows)}/{len(names)}", *cells(row), sep="  ", file=sys.stderr, flush=True)
    return [rows[name] for name in names]


# The table

HEADER = (
    *("model", "", "largest relative error", "layers pruned", "prunable", "frozen"),
    *("edges that copy", "plan s", "export s", "peak MiB"),
)


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    if "cases" not in row:
        return [row["model"], row["status"], row["error"], *[""] * (len(HEADER) - 3)]

    def each(show: Callable[[Mapping[str, Any]], str]) -> str:
        return " / ".join(show(case) for case in row["cases"])

    frozen = [f"{share:.1%} {operation}" for operation, share in row["frozen"].items()]
    return [
        row["model"],
        row["status"],
        each(lambda case: f"{case['relative_error']:.0e}"),
        each(lambda case: str(case["layers_pruned"])) + f" of {row['layers']}",
        f"{row['prunable']:.1%}",
        ", ".join(frozen) or "–",
        each(lambda case: f"{case['copies']} of {case['reads']}"),
        each(lambda case: f"{case['plan_seconds']:.2f}"),
        each(lambda case: f"{case['export_seconds']:.2f}"),
        f"{row['peak_mib']:,.0f}",
    ]


def summary(rows: list[dict[str, Any]]) -> str:
    """The sentence above the table."""
    exact = sum(row["status"] == "exact" for row in rows)
    cases = [case for row in rows for case in row.get("cases", ())]
    if not cases:
        return f"{exact} of {len(rows)} models exact."
    slowest = max(case["plan_seconds"] for case in cases)
    worst = max(case["relative_error"] for case in cases)
    return (
        f"{exact} of {len(rows)} models exact at {TOLERANCE:.0e}; largest relative error "
        f"{worst:.0e}, slowest plan {slowest:.1f} s."
    )


def document(rows: list[dict[str, Any]], about: Mapping[str, str]) -> str:
    """The page for the docs."""
    names = " / ".join(about["cases"].split("; "))
    table = [HEADER, ["---"] * len(HEADER), *(cells(row) for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in table]
    return "\n".join(
        [
            "# Every torchvision classifier",
            "",
            summary(rows),
            "",
            f"Written by `{about['command']}` on {about['date']}: torch {about['torch']}, "
            f"torchvision {about['torchvision']}, Python {about['python']}, one thread.",
            "",
            f"Every convolution and linear drops a share of its columns at random: {names}, in "
            "this order where a cell has several numbers. Weights are random and scaled so that "
            "the output follows the input. The exported model is compared with the masked one in "
            "float64.",
            "",
            "- **layers pruned**: convolutions and linears whose weight is smaller in the "
            "export, of those that evaluation reaches.",
            "- **prunable**: share of convolution and linear weights in layers whose input "
            "channels or output channels can leave. Columns that read the model's input or a "
            "frozen tensor leave too, but do not count.",
            "- **frozen**: share of all parameters that stay whole, by the operation that keeps "
            "them so.",
            "- **edges that copy**: reads that gather or copy by runs, of all reads of a tensor "
            "with channels in the export.",
            "- **plan s** includes capture; **export s** excludes verification. Both after a "
            "first capture, in which torch imports what it needs.",
            "- **peak MiB** is the whole process, float64 verification included.",
            "",
            *lines,
            "",
        ]
    )


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = [list(HEADER), *(cells(row) for row in rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(HEADER))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    print(summary(rows))


def main() -> None:
    """Try the models asked for; exit with 1 if any row fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", metavar="A,B,C", help="only these; the docs are not written")
    parser.add_argument("--empty", action="store_true", help="a case where some keep nothing, too")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once (some need 15 GB)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-write", action="store_true", help="leave the docs alone")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = (*CASES, EMPTY_CASE) if arguments.empty else CASES
    if arguments.one:
        print(json.dumps(asdict(try_model(arguments.one, cases, arguments.seed))))
        return
    torchvision = import_torchvision()
    every = torchvision.models.list_models(module=torchvision.models)
    names = arguments.models.split(",") if arguments.models else every
    rows = run_all(names, arguments)
    show(rows)
    if not arguments.models and not arguments.no_write:
        about = {
            "command": " ".join(["python scripts/zoo.py", *sys.argv[1:]]),
            "date": datetime.date.today().isoformat(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "python": platform.python_version(),
            "cases": "; ".join(case.name for case in cases),
        }
        DOCS.mkdir(exist_ok=True)
        (DOCS / "zoo.md").write_text(document(rows, about))
        (DOCS / "zoo.json").write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    sys.exit(0 if all(row["status"] == "exact" for row in rows) else 1)


if __name__ == "__main__":
    main()
