"""Ours beside the peers': `python benchmarks/peers.py [MODEL ...] [--export-only] [--json PATH]`.

What an export takes and gives on one core: this project, apple's ml-upscale (`apple-upscale`, the
paper's own code) and Torch-Pruning, each in a process of its own, turn by turn for every model.
Unless `--export-only`, each also saves its result, traced by TorchScript; the saved files and the
unpruned model then race in one process, NCHW and channels-last. `error` is how far an export's
output is from the masked model's, relative (Torch-Pruning has no masks to compare with).

- ours and ml-upscale get the same masks: every convolution that is neither depthwise nor first
  in the model drops 25% of its input channels, at random. Timed: from the model and the masks to
  the smaller model, `plan` and `export` here, `PruningManager.compute` and `prune` there.
- Torch-Pruning has no masks of one's own: `MagnitudePruner` at a ratio of 25%, layer by layer,
  the classifier left out. Timed: making the pruner, and its step.

None of them verifies within the time. `seconds` is wall clock, `cpu` the processor's time behind
it: far apart, the machine was busy. The first export of a process is in no median but shown as
`first`. A peer that fails gets a row that says how.

The peers live in a virtual environment of their own, made on the first run (`--env`, by default
in the user's cache), with the pinned torch. ml-upscale is installed without its dependencies,
since it asks for torch 2.0.1, and is also named `upscale`: hence the separate processes. It
expects a GPU, so `.cuda()` is made to do nothing.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

# Nothing but the standard library up here: this file also runs in the peers' environment.

MODELS = ("resnet50", "resnet101", "densenet121", "densenet201", "efficientnet_v2_s")
AMOUNT = 0.25
SIZE = 224
SEED = 0

PINNED = ("torch==2.13.0", "numpy==2.4.6", "pillow==13.0.0")
WITHOUT_DEPENDENCIES = ("torchvision==0.28.0", "apple-upscale==0.1.1", "torch-pruning==1.6.1")
READY = "peers-ready.json"

Masks = dict[str, list[int]]
Row = dict[str, Any]


# What each system does, in its own process


def export_ours(model: Any, example: Any, dropped: Masks) -> Any:
    """This project."""
    import upscale
    from upscale.model.layers import columns

    kept = {
        name: sorted(set(range(columns(model.get_submodule(name)))).difference(indices))
        for name, indices in dropped.items()
    }
    selection = upscale.Selection(kept=kept)
    return upscale.export(model, upscale.plan(model, example, selection))


def export_ml_upscale(model: Any, example: Any, dropped: Masks) -> Any:
    """The paper's own code. It prunes in place what it finds to be zero."""
    import torch

    from upscale import PruningManager

    with torch.no_grad():
        for name, indices in dropped.items():
            model.get_submodule(name).weight[:, indices] = 0
    PruningManager(model).compute([example]).prune()
    return model


def export_torch_pruning(model: Any, example: Any, dropped: Masks) -> Any:
    """Torch-Pruning. It prunes in place; the last linear, the classifier, keeps its outputs."""
    import torch
    import torch_pruning

    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    pruner = torch_pruning.pruner.MagnitudePruner(
        model,
        example,
        importance=torch_pruning.importance.MagnitudeImportance(p=2),
        pruning_ratio=AMOUNT,
        global_pruning=False,
        ignored_layers=linears[-1:],
    )
    pruner.step()
    return model


SYSTEMS: dict[str, Callable[[Any, Any, Masks], Any]] = {
    "ours": export_ours,
    "ml-upscale": export_ml_upscale,
    "Torch-Pruning": export_torch_pruning,
}


def work(system: str, name: str, runs: int, directory: Path | None) -> Row:
    """Time one system on one model, and save what it gives; called in its own environment."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    models = import_models()
    torch.manual_seed(SEED)
    model = models.get_model(name, weights=None).eval()
    dropped = random_masks(model)
    example = torch.randn(1, 3, SIZE, SIZE)
    seconds, working, left, error = [], [], 0, None
    for _ in range(1 + runs):
        mine = copy.deepcopy(model)
        start, started = time.perf_counter(), time.process_time()
        exported = SYSTEMS[system](mine, example, dropped)
        seconds.append(time.perf_counter() - start)
        working.append(time.process_time() - started)
        left = sum(parameter.numel() for parameter in exported.parameters())
        with torch.no_grad():
            output = exported(example)
            if system != "Torch-Pruning":
                masked = copy.deepcopy(model)
                for layer, indices in dropped.items():
                    masked.get_submodule(layer).weight[:, indices] = 0
                expected = masked(example)
                error = float((output - expected).abs().max() / expected.abs().max())
    if directory is not None:
        save(exported, example, directory / f"{name}-{system}")
        save(model, example, directory / f"{name}-unpruned")
        if system == "ours":
            last = example.contiguous(memory_format=torch.channels_last)
            save(export_ours(copy.deepcopy(model), last, dropped), last, directory / f"{name}-ours")
    return {
        "error": error,
        "first s": seconds[0],
        "seconds": median(seconds[1:] or seconds),
        "cpu s": median(working[1:] or working),
        "runs": seconds,
        "parameters left": left / sum(parameter.numel() for parameter in model.parameters()),
    }


def save(model: Any, example: Any, path: Path) -> None:
    """Trace a model and write it; for both formats, if the example is as torch lays it out."""
    import torch

    last = example.contiguous(memory_format=torch.channels_last)
    given = (
        {"NCHW": example, "channels-last": last}
        if example.is_contiguous()
        else {"channels-last": last}
    )
    for memory, x in given.items():
        with torch.inference_mode():
            own = copy.deepcopy(model).eval()
            if memory == "channels-last":
                own = own.to(memory_format=torch.channels_last)
            torch.jit.trace(own, x, check_trace=False).save(f"{path}-{memory}.pt")


def race_files(name: str, directory: Path, runs: int) -> Row:
    """What the saved models of one name take, each against the unpruned one in one loop."""
    import torch

    from upscale.targets.racing import race

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    found: Row = {}
    for memory in ("NCHW", "channels-last"):
        form = torch.channels_last if memory == "channels-last" else torch.contiguous_format
        x = torch.randn(1, 3, SIZE, SIZE).contiguous(memory_format=form)
        models = {}
        for system in ("unpruned", *SYSTEMS):
            path = directory / f"{name}-{system}-{memory}.pt"
            if path.exists():
                models[system] = torch.jit.load(str(path))
        taken = race({s: partial(model, x) for s, model in models.items()}, runs=runs)
        found[memory] = {s: own.median_ms / taken["unpruned"].median_ms for s, own in taken.items()}
    return found


def random_masks(model: Any) -> Masks:
    """The input channels each convolution drops; the same in every environment.

    Drawn here and not by `trials`, which imports our `upscale`: the peers' own has that name too.
    """
    import torch

    generator = random.Random(SEED)
    convolutions = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Conv2d) and module.groups == 1
    ]
    return {
        name: sorted(generator.sample(range(count), round(AMOUNT * count)))
        for name, module in convolutions[1:]
        if (count := module.in_channels) > 1
    }


def import_models() -> Any:
    """torchvision's models, where its compiled operators may be missing beside a CPU torch."""
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        import torchvision

        torchvision._declared = library  # its operators go when it is freed
    return torchvision.models


# Setting up and running them


def make_environment(directory: Path) -> Path:
    """The Python of an environment with both peers in it; made if it is not there yet."""
    python = directory / "bin" / "python"
    wanted = {"pinned": [*PINNED], "without dependencies": [*WITHOUT_DEPENDENCIES]}
    ready = directory / READY
    if ready.exists() and json.loads(ready.read_text()) == wanted:
        return python
    print(f"installing the peers into {directory}", file=sys.stderr)
    venv.create(directory, with_pip=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, *PINNED], check=True)
    subprocess.run([*pip, "--no-deps", *WITHOUT_DEPENDENCIES], check=True)
    ready.write_text(json.dumps(wanted))
    return python


def run(
    system: str, name: str, arguments: argparse.Namespace, python: Path, directory: Path | None
) -> Row:
    """The row of one system and model; a failure is a row too."""
    command = [str(python), __file__, "--worker", system, name, "--runs", str(arguments.runs)]
    if directory is not None:
        command += ["--save", str(directory)]
    row: Row = {"model": name, "system": system}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=arguments.timeout,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**row, "failed": f"over {arguments.timeout:.0f} s"}
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        return {**row, "failed": said[-1] if said else f"exit status {done.returncode}"}
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


def show(rows: list[Row]) -> None:
    """Print a line for every model and system."""
    ours = {row["model"]: row.get("seconds") for row in rows if row["system"] == "ours"}
    head = f"{'model':20} {'system':14} {'seconds':>8} {'cpu':>8} {'first':>8} {'÷ ours':>7}"
    print(f"{head} {'parameters left':>16} {'error':>8} {'NCHW':>6} {'channels-last':>14}")
    for row in rows:
        start = f"{row['model']:20} {row['system']:14}"
        if "failed" in row:
            print(f"{start} failed: {row['failed']}")
            continue
        base = ours.get(row["model"])
        ratio = f"{row['seconds'] / base:.1f}" if base else "-"
        print(
            f"{start} {row['seconds']:8.2f} {row['cpu s']:8.2f} {row['first s']:8.2f} {ratio:>7} "
            f"{row['parameters left']:16.1%} {_cell(row['error'], '8.0e')} "
            f"{_cell(row.get('NCHW'), '6.2f')} {_cell(row.get('channels-last'), '14.2f')}"
        )


def _cell(value: float | None, form: str) -> str:
    return format("-", f">{form.split('.')[0]}") if value is None else format(value, form)


def compare(rows: list[Row]) -> None:
    """Print how the races with ml-upscale ended: ours over theirs."""
    by_system = {(row["model"], row["system"]): row for row in rows}
    ratios = []
    for (name, system), row in by_system.items():
        theirs = by_system.get((name, "ml-upscale"), {})
        for memory in ("NCHW", "channels-last"):
            if system == "ours" and memory in row and memory in theirs:
                ratios.append((row[memory] / theirs[memory], name, memory))
    if ratios:
        mean = math.exp(sum(math.log(ratio) for ratio, _, _ in ratios) / len(ratios))
        worst, name, memory = max(ratios)
        print(
            f"ours ÷ ml-upscale, same masks: {mean:.3f} in the mean of {len(ratios)} races; at "
            f"worst {worst:.3f} ({name}, {memory})"
        )


def main() -> None:
    """Run every system on every model; print a table, and write it where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help="torchvision's names")
    parser.add_argument("--export-only", action="store_true", help="do not race the results")
    parser.add_argument("--turns", type=int, default=20, help="runs behind each latency")
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--env", type=Path, help="the peers' virtual environment")
    parser.add_argument("--runs", type=int, default=3, help="exports behind each median")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one process")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--worker", nargs=2, metavar=("SYSTEM", "NAME"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(work(*arguments.worker, arguments.runs, arguments.save)))
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    peers = make_environment(arguments.env or cache / "upscale" / "peers")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        directory = None if arguments.export_only else Path(temporary)
        for name in arguments.models or MODELS:
            for system in SYSTEMS:
                python = Path(sys.executable) if system == "ours" else peers
                rows.append(run(system, name, arguments, python, directory))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            if directory is not None:
                taken = race_files(name, directory, arguments.turns)
                for row in rows:
                    for memory, ratios in taken.items():
                        if row["model"] == name and row["system"] in ratios:
                            row[memory] = ratios[row["system"]]
    show(rows)
    compare(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
