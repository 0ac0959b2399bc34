"""OpenVINO on the processor: a model written as ONNX, and compiled from there."""

from __future__ import annotations

import importlib
import importlib.metadata
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from upscale.capture import Example
from upscale.errors import TargetError
from upscale.formats.onnx_program import onnx_program
from upscale.targets.graph_runtime import GraphRuntime, arrays
from upscale.targets.prices import BUILT_IN, CopyPrices
from upscale.targets.target import Target

# Near what `upscale.calibrate` measures on one core with AVX-512.
COPY = CopyPrices(gather_byte=0.2, run_byte=0.1, run_row=7000.0, slice_byte=0.12, join_byte=0.1)
PRICES = replace(
    BUILT_IN,
    outer=COPY,
    inner=COPY,
    call=2700.0,
    piece=100.0,
    mac=0.020,
    channelwise_mac=0.057,
    weight_byte=0.038,
    pass_byte=0.12,
    block=1,
    align=8,
    odd=1.1,
    channelwise_odd=1.0,
    slice_call=500.0,
)
PRECISIONS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class OpenVino(GraphRuntime):
    """Runs a model as OpenVINO compiles it for latency."""

    name = "openvino"
    needs = ("onnx", "onnxscript", "openvino")
    extra = "openvino"
    built_in = PRICES
    moving = frozenset("Concatenation Gather Pad Reorder Split StridedSlice Transpose".split())

    def version(self) -> str:
        return f"openvino {importlib.metadata.version('openvino')}"

    def prepare(self, model: nn.Module, example: Example, target: Target) -> Callable[[], object]:
        given = arrays(example)
        request = compiled(model, example, target).create_infer_request()
        return partial(request.infer, given)

    def operations(self, model: nn.Module, example: Example, target: Target) -> Counter[str]:
        nodes = compiled(model, example, target).get_runtime_model().get_ops()
        kinds = (str(node.get_rt_info()["layerType"].astype(str)) for node in nodes)
        return Counter(kind for kind in kinds if kind not in ("Const", "Input", "Output"))


def compiled(model: nn.Module, example: Example, target: Target) -> Any:
    """A model as OpenVINO compiles it for a target's threads and precision."""
    runtime = importlib.import_module("openvino")
    options = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": target.threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # others may be at work on a core that it would choose
        "INFERENCE_PRECISION_HINT": PRECISIONS.get(target.dtype, "f32"),
    }
    program = onnx_program(model, example, dynamic_batch=False)
    # By way of a file: weights may be larger than a message can be.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        program.save(path)
        try:
            return runtime.Core().compile_model(str(path), "CPU", options)
        except RuntimeError as error:
            raise TargetError(f"OpenVINO does not take this model: {error}") from error


RUNTIME = OpenVino()
