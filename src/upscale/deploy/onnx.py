"""ONNX, by torch's exporter; needs the `onnx` extra."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from upscale.capture import turn
from upscale.deploy.exported import exported
from upscale.errors import DeployError
from upscale.model.accepting import ordinary_tensors
from upscale.store.atomic import replacing
from upscale.tools.optional_packages import MissingPackageError
from upscale.tools.quiet import unwarned


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
