"""Deployed files, run, and their outputs compared."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from upscale.capture import Example

old_format = pytest.mark.filterwarnings("ignore:.torch.jit.load.")
needs_onnx = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnxscript")),
    reason="needs the onnx extra",
)


def run_onnx(path: Path, inputs: Any) -> list[Tensor]:
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    tensors = Example.of(inputs).tensors
    given = zip(session.get_inputs(), tensors, strict=True)
    return [torch.from_numpy(x) for x in session.run(None, {i.name: t.numpy() for i, t in given})]


def assert_close(found: list[Any], expected: list[Any], tolerance: float) -> None:
    found, expected = ([x for x in every if isinstance(x, Tensor)] for every in (found, expected))
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * scale)
