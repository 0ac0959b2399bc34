"""Reading a file: nothing but what it says, and what lies beside it in its folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from upscale.errors import OnnxError
from upscale.onnx_files.dtypes import dtype_of
from upscale.tools.optional_packages import import_optional

LACKING = "reading ONNX files needs onnx: pip install 'upscale[onnx]'"
OLDEST = 9


def onnx() -> Any:
    """The package `onnx`."""
    return import_optional("onnx", LACKING)


def read_model(path: str | os.PathLike[str]) -> Any:
    """The model that a file holds, with its external data, or an `OnnxError`."""
    file = Path(path)
    if not file.is_file():
        raise OnnxError(f"{file} is no file")
    package = onnx()
    try:
        model = package.load(str(file), load_external_data=False)
    except Exception as error:  # the parser raises errors of its own
        raise OnnxError(f"{file} is no ONNX model: {_first(error)}") from error
    try:
        opset = opset_of(model)
        if not model.graph.node or not model.graph.output:
            raise OnnxError("it holds no graph")
        if opset < OLDEST:
            raise OnnxError(f"its opset is {opset}; {OLDEST} is the oldest that is read")
        for tensor in _tensors(model.graph):
            _load(tensor, file.resolve().parent)
    except OnnxError as error:
        raise OnnxError(f"{file}: {error}") from None
    return model


def opset_of(model: Any) -> int:
    """The version of ONNX's own operators that a model is written in."""
    versions = [own.version for own in model.opset_import if own.domain in ("", "ai.onnx")]
    if not versions:
        raise OnnxError("it says no opset")
    return int(max(versions))


def tensor_of(proto: Any) -> Tensor:
    """The numbers of a constant of the file."""
    dtype_of(proto.data_type)
    shape = tuple(proto.dims)
    if any(size < 0 for size in shape):
        raise OnnxError(f"{proto.name} has a size below zero")
    try:
        array = onnx().numpy_helper.to_array(proto)
    except Exception as error:  # sizes that do not fit, bytes that are no numbers
        raise OnnxError(f"{proto.name} cannot be read: {_first(error)}") from error
    if array.dtype.kind not in "fiub" and dtype_of(proto.data_type) is not torch.bfloat16:
        raise OnnxError(f"{proto.name} holds {array.dtype}, which no tensor holds")
    if dtype_of(proto.data_type) is torch.bfloat16:
        return torch.from_numpy(array.astype(np.float32)).bfloat16()
    return torch.from_numpy(np.array(array))


def _tensors(graph: Any) -> list[Any]:
    """Every constant that may lie in another file."""
    found = list(graph.initializer)
    for node in graph.node:
        found += [own.t for own in node.attribute if own.type == own.TENSOR]
        found += [each for own in node.attribute for each in own.tensors]
    return found


def _load(tensor: Any, folder: Path) -> None:
    """Load a constant that lies in another file: one in the folder of the model, or below it."""
    if tensor.data_location != tensor.EXTERNAL:
        return
    said = {entry.key: entry.value for entry in tensor.external_data}
    location = said.get("location", "")
    file = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not file.is_relative_to(folder):
        raise OnnxError(f"{tensor.name} lies in {location!r}, outside of the folder of the model")
    if not file.is_file():
        raise OnnxError(f"{tensor.name} lies in {location!r}, which is not there")
    try:
        offset, length = int(said.get("offset") or 0), int(said.get("length") or -1)
    except ValueError as error:
        raise OnnxError(f"{tensor.name} lies at no place: {error}") from error
    whole = file.stat().st_size
    length = whole - offset if length < 0 else length
    if offset < 0 or offset + length > whole:
        raise OnnxError(f"{tensor.name} lies behind the end of {location!r}")
    with file.open("rb") as opened:
        opened.seek(offset)
        tensor.raw_data = opened.read(length)
    tensor.data_location = tensor.DEFAULT
    del tensor.external_data[:]


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
