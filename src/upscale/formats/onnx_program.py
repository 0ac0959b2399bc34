"""ONNX, by torch's exporter; needs the `onnx` extra."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.onnx import ONNXProgram

from upscale.capture import turn
from upscale.errors import DeployError
from upscale.formats.program import exported
from upscale.tools.optional_packages import MissingPackageError
from upscale.tools.quiet import unwarned

SPREADING = ("Cast", "CastLike", "Expand")


def onnx_program(
    model: nn.Module, example: Any, *, opset: int | None = None, dynamic_batch: bool
) -> ONNXProgram:
    """A model as ONNX, of the opset asked for, for any batch or for the example's alone."""
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingPackageError(f"{', '.join(missing)} is missing: pip install 'upscale[onnx]'")
    # ONNX has no word for `None`, and not every version of torch leaves it out.
    program = exported(model, example, dynamic_batch=dynamic_batch, flat=True)
    written_to = _buffers_written(program)
    if written_to:
        raise DeployError(
            f"the model writes to {', '.join(sorted(written_to))} in every call, and an ONNX model "
            "keeps nothing from call to call; in evaluation mode it may not"
        )
    try:
        with turn(), unwarned(), contextlib.redirect_stdout(io.StringIO()):
            # Runtimes fold and fuse when they load; here it takes minutes where much is sliced.
            made = torch.onnx.export(
                program, dynamo=True, opset_version=opset, verbose=False, optimize=False
            )
    except Exception as error:  # the exporter says in many ways that it cannot
        raise DeployError(f"torch.onnx does not take this model: {error}") from error
    assert made is not None
    _drop_zero_biases(made.model)
    written = made.model.opset_imports[""]
    if opset is not None and written != opset:
        raise DeployError(f"torch.onnx can write this model with opset {written}, not {opset}")
    return made


def _drop_zero_biases(model: Any) -> None:
    """Let convolutions without a bias have none.

    The exporter computes zeros for them in the graph, with which runtimes neither fold the
    BatchNorm behind nor take their faster kernels.
    """
    convolutions = [node for node in model.graph if node.op_type in ("Conv", "ConvTranspose")]
    for node in convolutions:
        if len(node.inputs) > 2 and _is_zero(node.inputs[2]):
            unused = [node.inputs[2]]
            node.resize_inputs(2)
            while unused:  # what made the zeros, from the last to the first
                value = unused.pop()
                maker = value.producer() if value is not None else None
                if maker is not None and not any(out.uses() for out in maker.outputs):
                    unused += maker.inputs
                    model.graph.remove(maker, safe=True)


def _is_zero(value: Any) -> bool:
    """Whether a value is a constant zero, spread over a shape or cast."""
    while (maker := value.producer()) is not None and maker.op_type in (
        "Expand",
        "CastLike",
        "Cast",
    ):
        value = maker.inputs[0]
    if maker is None or maker.op_type != "Constant":
        return False
    (held,) = maker.attributes.values()
    return not np.any(np.asarray(held.value))


def _buffers_written(program: ExportedProgram) -> set[str]:
    """The buffers that a program leaves changed."""
    signature = program.graph_signature
    found = set(signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable and node.args:
            written = node.args[0]
            while isinstance(written, fx.Node) and _is_view(written):
                written = written.args[0]
            if str(written) in signature.inputs_to_buffers:
                found.add(signature.inputs_to_buffers[str(written)])
    return found


def _is_view(node: fx.Node) -> bool:
    """Whether a node's result lies in the memory of its first argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(node.args) and schema.arguments[0].alias_info is not None
