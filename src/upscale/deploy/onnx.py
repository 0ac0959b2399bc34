"""ONNX, by torch's exporter, as a file; needs the `onnx` extra."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

from upscale.formats.onnx_program import onnx_program
from upscale.model.accepting import ordinary_tensors
from upscale.tools.atomic import replacing


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
    program = onnx_program(model, example, opset=opset, dynamic_batch=dynamic_batch)
    with replacing(path) as fresh:
        program.save(fresh)
