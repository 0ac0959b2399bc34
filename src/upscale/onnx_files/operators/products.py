"""Products of computed tensors."""

from __future__ import annotations

from typing import Any

import torch

from upscale.onnx_files.build import Build
from upscale.onnx_files.operators.table import Call, rule


@rule("Einsum")
def einsum(call: Call, build: Build) -> Any:
    """A sum of products, as its equation says."""
    equation = call.attribute("equation")
    equation = equation.decode() if isinstance(equation, bytes) else equation
    operands = [call.read(place, build) for place in range(len(call.inputs))]
    return build.call(torch.einsum, equation.replace(" ", ""), *operands)
