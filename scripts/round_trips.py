"""Every torchvision classifier through every file: what is read computes what was written.

    python -m scripts.round_trips            # all, into docs/round-trips.md and .json
    python -m scripts.round_trips --resume   # only what docs/round-trips.json has not, or failed

needs the `vision` and `onnx` extras. Each model is pruned by 25% random masks, saved and loaded
with and without its class, and deployed as ONNX (run by ONNX Runtime), `.pt2` and TorchScript;
each is compared with the export, in float32, on another batch than the example's. One process a
model. The page is written anew after every model, unless only some are asked for.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import upscale
from scripts.zoo.trial import (
    IMAGES,
    LEAST_VARIATION,
    SIZES,
    Case,
    accepted,
    make_model,
    native_sizes,
    random_selections,
)
from trials.lively import DAMPING, Shape, enliven, images
from upscale.zoo import import_torchvision, torchvision_model

ROOT = Path(__file__).parents[1]
PAGE, RECORDS = ROOT / "docs" / "round-trips.md", ROOT / "docs" / "round-trips.json"
TOLERANCE = 1e-5
WAYS = ("load", "load with class", "ONNX Runtime", "pt2", "TorchScript")


def run_onnx(path: Path, images: Tensor) -> Tensor:
    """What ONNX Runtime computes from a file."""
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    return torch.from_numpy(output)


def ways(
    name: str, pruned: torch.fx.GraphModule, example: Tensor, images: Tensor, place: Path
) -> dict[str, Callable[[], Tensor]]:
    """For each way, what writes the model, reads it and runs it."""
    saved, onnx, pt2, script = (
        place / name for name in ("m.safetensors", "m.onnx", "m.pt2", "m.pt")
    )

    def with_class() -> Tensor:
        return run(upscale.load(saved, torchvision_model(name)))

    def without() -> Tensor:
        upscale.save(pruned, saved)
        return run(upscale.load(saved))

    def by_onnx() -> Tensor:
        upscale.deploy.to_onnx(pruned, example, onnx)
        return run_onnx(onnx, images)

    def by_export() -> Tensor:
        upscale.deploy.to_exported(pruned, example, pt2)
        return run(torch.export.load(pt2).module())

    def by_script() -> Tensor:
        upscale.deploy.to_torchscript(pruned, example, script)
        return run(torch.jit.load(script))

    def run(model: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            return model(images)

    return dict(zip(WAYS, (without, with_class, by_onnx, by_export, by_script), strict=True))


@torch.no_grad()
def calm_model(
    name: str, seed: int, shape: Shape
) -> tuple[nn.Module, upscale.Selection, Tensor, float]:
    """A model, what it keeps, images, and how far rounding to float32 alone moves its output.

    Every runtime rounds otherwise. A model that makes more of rounding than a tenth of the
    tolerance is damped further, as far as that goes; if it goes nowhere, it stays as torchvision
    makes it.
    """
    for damping in (*DAMPING, None):
        model = make_model(name, seed) if damping else stock_model(name, seed)
        (selection,) = random_selections(model, Case(0.25), seed)
        inputs = images(shape)
        if damping:
            enliven(model, (selection,), inputs, damping)
        own, variation = rounding(upscale.mask(model, selection), inputs)
        gc.collect()  # the largest models leave no room for another
        if own <= TOLERANCE / 10:
            break
    if not variation >= LEAST_VARIATION:
        raise SystemExit("the model's output hardly depends on its input")
    return model, selection, inputs, own


def rounding(masked: nn.Module, inputs: Tensor) -> tuple[float, float]:
    """How far float32 moves a model's output, and how far outputs for its inputs are apart."""
    single = masked(inputs)
    own = relative_error(single, masked.double()(inputs.double()))
    return own, relative_error(single.mean(0), single)


def stock_model(name: str, seed: int) -> nn.Module:
    """A model with the weights that torchvision draws."""
    torch.manual_seed(seed)
    return torchvision_model(name)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest number expected."""
    return float((found - expected).abs().max() / expected.abs().max())


def try_one(name: str, seed: int) -> dict[str, Any]:
    """The row of one model: the relative error of each way."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    model = make_model(name, seed)
    shape = accepted(model, ((1, 3, size, size) for size in (*SIZES, *native_sizes(name))))
    model, selection, inputs, own = calm_model(name, seed, (IMAGES, *shape[1:]))
    example = torch.randn(shape)
    pruned = upscale.export(model, upscale.plan(model, example, selection))
    del model
    gc.collect()
    with torch.no_grad():
        expected = pruned(inputs)
    row: dict[str, Any] = {"model": name, "float32 itself": own}
    with tempfile.TemporaryDirectory() as place:
        for way, go in ways(name, pruned, example, inputs, Path(place)).items():
            began = time.perf_counter()
            try:
                row[way] = relative_error(go(), expected)
            except upscale.UpscaleError as error:
                row[way] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            row[f"{way} s"] = round(time.perf_counter() - began, 1)
        row["MiB"] = (Path(place) / "m.safetensors").stat().st_size / 2**20
    return row


def passes(row: Mapping[str, Any]) -> bool:
    """Whether every way gave the same output."""
    return all(isinstance(row.get(way), float) and row[way] <= TOLERANCE for way in WAYS)


def run_one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Try a model in a process of its own; failures come back as rows too."""
    command = [sys.executable, "-m", "scripts.round_trips", "--one", name]
    command += ["--seed", str(arguments.seed)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=arguments.timeout
        )
    except subprocess.TimeoutExpired:
        return {"model": name, "failed": f"over {arguments.timeout:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        return {"model": name, "failed": f"exit {done.returncode}: {(said or [''])[-1][:300]}"}
    row: dict[str, Any] = json.loads(lines[-1])
    return row


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    if "failed" in row:
        return [row["model"], row["failed"], *[""] * (1 + len(WAYS))]
    errors = (row[way] for way in WAYS)
    return [
        row["model"],
        f"{row['MiB']:.1f}",
        f"{row['float32 itself']:.0e}",
        *(f"{error:.0e}" if isinstance(error, float) else str(error) for error in errors),
    ]


def document(rows: list[dict[str, Any]], seed: int) -> str:
    """The page for the docs."""
    table = [["model", "MiB", "float32 itself", *WAYS], ["---"] * (3 + len(WAYS))]
    table += map(cells, rows)
    return "\n".join(
        [
            "# Round trips",
            "",
            f"{sum(map(passes, rows))} of {len(rows)} classifiers come back from every file within "
            f"{TOLERANCE:.0e} of the largest output, in float32.",
            "",
            f"Written by `python -m scripts.round_trips --seed {seed}` on "
            f"{datetime.date.today().isoformat()} with torch {torch.__version__}. Every layer "
            "drops 25% of its columns at random. Weights are random, scaled so that outputs follow "
            "inputs; where that leaves a model too rough for float32, as torchvision draws them. "
            "Cells are relative errors on a batch of "
            f"{IMAGES}, for exports made with a batch of one; MiB is the size of the safetensors "
            "file, and *float32 itself* how far the masked model's own output is from float64's.",
            "",
            *(f"| {' | '.join(row)} |" for row in table),
            "",
        ]
    )


def main() -> None:
    """Try the models asked for; the exit code tells whether all came back."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", metavar="A,B,C", help="only these; the docs are not written")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="keep the rows that passed")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(try_one(arguments.one, arguments.seed)))
        return
    models = import_torchvision().models
    names = arguments.models.split(",") if arguments.models else models.list_models(module=models)
    held = json.loads(RECORDS.read_text()) if arguments.resume and RECORDS.exists() else []
    found = {row["model"]: row for row in held}
    for name in names:
        if name not in found or not passes(found[name]):
            found[name] = run_one(name, arguments)
            print(json.dumps(found[name]), flush=True)
            if not arguments.models:
                rows = [found[name] for name in names if name in found]
                RECORDS.write_text(json.dumps(rows, indent=1) + "\n")
                PAGE.write_text(document(rows, arguments.seed))
    sys.exit(0 if all(passes(found[name]) for name in names) else 1)


if __name__ == "__main__":
    main()
