"""Small ONNX files made by hand, and how ONNX Runtime answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import helper, numpy_helper

Shape = Sequence[int | str]


def file_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[Shape, Any]],
    outputs: Mapping[str, Any],
    constants: Mapping[str, Any],
    *,
    opset: int = 17,
) -> Any:
    """A model of nodes; inputs as shapes and numpy types, outputs as numpy types."""
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [
            helper.make_tensor_value_info(n, kind(np.dtype(d)), list(s))
            for n, (s, d) in inputs.items()
        ],
        [helper.make_tensor_value_info(n, kind(np.dtype(d)), None) for n, d in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8 if opset <= 18 else 10
    return made


def saved(model: Any, path: Path) -> Path:
    """A file that holds a model."""
    path.write_bytes(model.SerializeToString())
    return path


def answers(model: Any, inputs: Mapping[str, Any]) -> list[Any]:
    """What ONNX Runtime makes of inputs."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = 1, 3
    given = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    session = onnxruntime.InferenceSession(given, settings, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, dict(inputs))
    return found


def assert_as_runtime(module: torch.nn.Module, model: Any, inputs: Mapping[str, Any]) -> None:
    """Raise unless a module gives what ONNX Runtime does, to 1e-4 of the greatest number."""
    with torch.no_grad():
        found = module(*(torch.from_numpy(own) for own in inputs.values()))
    found = found if isinstance(found, tuple) else (found,)
    for own, want in zip(found, answers(model, inputs), strict=True):
        assert tuple(own.shape) == want.shape
        most = np.abs(want.astype(np.float64)).max(initial=0.0)
        np.testing.assert_allclose(own.numpy(), want, rtol=0, atol=1e-4 * most + 1e-7)
