"""Sizes that a file computes, worked out for given shapes of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from upscale.onnx_files.build import Build
from upscale.onnx_files.importing import Source, attributes, constant
from upscale.onnx_files.naming import Names
from upscale.onnx_files.operators.table import OPERATORS, Call
from upscale.onnx_files.reading import opset_of, tensor_of

Teller = Callable[[str], tuple[int, ...] | None]


class _GoneError(Exception):
    """Nothing has the shape that is asked for."""


def asked_sizes(
    names: Sequence[str], makers: Mapping[str, Any], source: Source, tell: Teller
) -> list[Any] | None:
    """The numbers of values that follow from shapes alone, given those of all nodes of the graph.

    Nothing, if a value is gone whose shape is asked for.
    """
    known: dict[str, Tensor] = {}
    build = Build(fx.Graph(), Names(), 1 << 22)
    held = {own.name: own for own in source.model.graph.initializer}

    def value(name: str) -> Tensor:
        if name not in known:
            known[name] = tensor_of(held[name]) if name in held else made(name, makers[name])
        return known[name]

    def made(name: str, node: Any) -> Tensor:
        if node.op_type == "Constant":
            return constant(node)
        if node.op_type == "Shape" and node.input[0] in source.made:
            shape = tell(source.made[node.input[0]])
            if shape is None:
                raise _GoneError
            inputs: tuple[Any, ...] = (torch.empty(shape, device="meta"),)
        else:
            inputs = tuple(value(own) if own else None for own in node.input)
        opset = opset_of(source.model)
        call = Call(node.op_type, inputs, attributes(node), tuple(node.output), opset)
        result = OPERATORS[node.op_type](call, build)
        results = result if isinstance(result, list) else [result]
        found: Tensor = dict(zip(node.output, results, strict=False))[name]
        return found

    try:
        return [value(name).tolist() for name in names]
    except (_GoneError, KeyError):
        return None
