"""ONNX Runtime on the processor: a model written as ONNX and loaded from there."""

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
COPY = CopyPrices(gather_byte=0.2, run_byte=0.2, run_row=2000.0, slice_byte=0.2, join_byte=0.1)
PRICES = replace(
    BUILT_IN,
    outer=COPY,
    inner=COPY,
    call=2000.0,
    piece=650.0,
    mac=0.018,
    channelwise_mac=0.04,
    weight_byte=0.04,
    pass_byte=0.09,
    block=16,
    align=4,
    odd=1.15,
    channelwise_odd=6.0,
    slice_call=2000.0,
)


class OnnxRuntime(GraphRuntime):
    """Runs a model as ONNX Runtime does with all its optimisations."""

    name = "onnxruntime"
    needs = ("onnx", "onnxscript", "onnxruntime")
    extra = "onnx"
    built_in = PRICES
    moving = frozenset(
        "Concat Expand Gather Identity Pad Slice Split Transpose nchwc.ReorderInput "
        "nchwc.ReorderOutput".split()
    )

    def version(self) -> str:
        return f"onnxruntime {importlib.metadata.version('onnxruntime')}"

    def prepare(self, model: nn.Module, example: Example, target: Target) -> Callable[[], object]:
        given = arrays(example)
        session = session_of(model, example, target)
        slots = zip(session.get_inputs(), given, strict=True)
        fed = {slot.name: array for slot, array in slots}
        return partial(session.run, None, fed)

    def operations(self, model: nn.Module, example: Example, target: Target) -> Counter[str]:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            path = Path(folder) / "optimised.onnx"
            session_of(model, example, target, optimised=path)
            nodes = importlib.import_module("onnx").load(path, load_external_data=False).graph.node
        # A convolution in blocks is another than one without.
        return Counter(f"{'nchwc.' * ('nchwc' in node.domain)}{node.op_type}" for node in nodes)


def session_of(
    model: nn.Module, example: Example, target: Target, *, optimised: Path | None = None
) -> Any:
    """A session that runs a model on a target's threads.

    What the runtime made of the graph is written to `optimised`.
    """
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = target.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # it warns where it writes for this processor alone
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    program = onnx_program(model, example, dynamic_batch=False)
    # By way of a file: weights may be larger than a message can be.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        program.save(path)
        try:
            return runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common class of their own
            raise TargetError(f"ONNX Runtime does not take this model: {error}") from error


RUNTIME = OnnxRuntime()
