"""Import ONNX files, hold them against ONNX Runtime, prune a quarter at random, and edit them.

    python -m scripts.onnx_trial models/*.onnx

For each file: how far the module is from ONNX Runtime (a share of the greatest number), whether
an amount of 0 gives the same graph, what part of the parameters is left of random masks of 25%,
how far the edited file is from the masked module, and what stayed whole.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import upscale
from trials.masks import random_selection
from upscale.onnx_files import example_of
from upscale.onnx_files.importing import source_of

SHARE = 0.25


def distance(module: torch.nn.Module, path: Path, names: list[str], inputs: list[Any]) -> float:
    """How far ONNX Runtime's answer to a file is from a module's."""
    onnxruntime = importlib.import_module("onnxruntime")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(str(path), settings)
    found = session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})
    with torch.no_grad():
        wanted = module(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    pairs = [(f.astype(float), w.double().numpy()) for f, w in zip(found, wanted, strict=True)]
    return max(float(abs(f - w).max() / max(1e-12, np.abs(w).max())) for f, w in pairs)


def trial(path: Path, place: Path) -> str:
    """What is told of one file."""
    model = upscale.from_onnx(path)
    example = example_of(model)
    inputs = list(example) if isinstance(example, tuple) else [example]
    names = [name for name, _, _ in source_of(model).example]
    apart = distance(model, path, names, inputs)
    out = place / "out.onnx"
    whole = upscale.prune(model, example, amount=0.0, verify=False)
    upscale.write_onnx(whole, model, out)
    same = out.read_bytes() == source_of(model).model.SerializeToString(deterministic=True)
    selection = random_selection(model, SHARE, 0, even=True, empty=False)
    pruned = upscale.prune(model, example, selection=selection)
    upscale.write_onnx(pruned, model, out)
    edited = distance(upscale.mask(model, selection), out, names, inputs)
    before, after = (sum(p.numel() for p in own.parameters()) for own in (model, pruned))
    frozen = sorted({own.operation for own in pruned.meta["plan"].frozen})
    verified = pruned.meta["verified"].precision
    return (
        f"{path.name}: import {apart:.1e}, amount 0 {'the same' if same else 'DIFFERS'}, "
        f"{after / before:.3f} of the parameters, exact in {verified}, file {edited:.1e}, "
        f"whole for: {', '.join(frozen) or 'nothing'}"
    )


def main() -> int:
    """Say what came of each file; the status is 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    failed = 0
    torch.set_flush_denormal(True)
    with tempfile.TemporaryDirectory() as place:
        for path in parser.parse_args().files:
            try:
                print(trial(path, Path(place)), flush=True)
            except upscale.UpscaleError as error:
                failed = 1
                print(f"{type(error).__name__}: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
