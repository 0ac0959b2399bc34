"""ONNX, by torch's exporter; needs the `onnx` extra."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from typing import Any

import torch
from torch import nn

from upscale.capture import turn
from upscale.deploy.exported import exported
from upscale.errors import DeployError
from upscale.ordinary import ordinary_tensors
from upscale.packages import MissingPackageError
from upscale.quiet import unwarned
from upscale.store.atomic import replacing


@ordinary_tensors()
def to_onnx(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    dynamic_batch: bool = True,
) -> None:
    """Write a model as ONNX, of the opset asked for, for any batch or for the example's alone.

    Weights of more than two gigabytes lie in a file beside it, named after it with `.data`.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(f"{', '.join(missing)} is missing: pip install 'upscale[onnx]'")
    program = exported(model, example, dynamic_batch=dynamic_batch)
    try:
        with turn(), unwarned(), contextlib.redirect_stdout(io.StringIO()):
            # Runtimes fold and fuse when they load; here it takes minutes where much is sliced.
            written = torch.onnx.export(
                program, dynamo=True, opset_version=opset, verbose=False, optimize=False
            )
    except Exception as error:  # the exporter says in many ways that it cannot
        raise DeployError(f"torch.onnx does not take this model: {error}") from error
    assert written is not None
    made = written.model.opset_imports[""]
    if opset is not None and made != opset:
        raise DeployError(f"torch.onnx can write this model with opset {made}, not {opset}")
    with replacing(path) as fresh:
        written.save(fresh)
