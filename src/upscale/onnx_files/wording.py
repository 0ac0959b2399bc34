"""How what an export does is said in ONNX: slices, gathers, concatenations, and a few more.

An export has calls that its model has not, and calls that its model has as part of one node of the
file. Both are written anew, in the opset of the file, by the entries of this table.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from upscale.errors import OnnxError
from upscale.onnx_files.reading import onnx
from upscale.onnx_files.sheet import Sheet
from upscale.rewrite.constant import Constant
from upscale.rewrite.gather import Gather, Infill


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """What a wording is made of: the sheet, the export, and where its values are found."""

    sheet: Sheet
    module: nn.Module
    shapes: dict[str, tuple[int, ...]]
    found: Callable[[fx.Node], str]

    def operand(self, value: Any, like: fx.Node) -> str:
        """The name of an operand, which may be a number beside a tensor."""
        if isinstance(value, fx.Node):
            return self.found(value)
        name = f"{like.name}_number"
        return self.sheet.constant(name, np.array(value, dtype=np.float32))

    def rank(self, node: fx.Node) -> int:
        """How many axes a value has."""
        return len(self.shapes[node.name])

    def axis(self, node: fx.Node, axis: int) -> int:
        """An axis of a value, counted from the first."""
        return axis % self.rank(node)


def _args(node: fx.Node) -> tuple[Any, ...]:
    return tuple(node.args)


def say(node: fx.Node, words: Words) -> str:
    """Write what a node of an export does, and tell the name of what it makes."""
    if node.op == "call_module":
        return _module(node, words.module.get_submodule(str(node.target)), words)
    wording = WORDINGS.get(node.target)
    if wording is None:
        raise OnnxError(f"{node.target} at {node.name} cannot be written as ONNX")
    return wording(node, words)


def cut(read: str, axis: int, start: int, end: int, step: int, words: Words, name: str) -> str:
    """A slice of one axis."""
    sheet = words.sheet
    if sheet.opset < 10:
        return sheet.write("Slice", [read], name, axes=[axis], starts=[start], ends=[end])
    bounds = [sheet.whole([own], f"{name}_bound") for own in (start, end, axis, step)]
    return sheet.write("Slice", [read, *bounds], name)


def sizes(entries: Any, words: Words, name: str) -> str:
    """A vector of sizes: numbers, or what nodes ask for."""
    entries = list(entries)
    free = [i for i, own in enumerate(entries) if isinstance(own, fx.Node)]
    if not free:
        return words.sheet.whole(entries, f"{name}_shape")
    parts = [
        words.found(own) if isinstance(own, fx.Node) else words.sheet.whole([own], f"{name}_size")
        for own in entries
    ]
    return words.sheet.write("Concat", parts, f"{name}_shape", axis=0)


def _narrow(node: fx.Node, words: Words) -> str:
    read, axis, start, length = _args(node)
    name = words.found(read)
    return cut(name, axis, start, start + length, 1, words, node.name)


def _cat(node: fx.Node, words: Words) -> str:
    parts, axis = (
        _args(node)[0],
        (*_args(node), 0)[1],
    )
    names = [words.found(own) for own in parts]
    return words.sheet.write("Concat", names, node.name, axis=words.axis(node, axis))


def _pad(node: fx.Node, words: Words) -> str:
    read, amounts, *more = _args(node)
    mode = more[0] if more else "constant"
    value = more[1] if len(more) > 1 else 0.0
    if mode != "constant" or any(isinstance(own, fx.Node) for own in amounts):
        raise OnnxError(f"padding at {node.name} cannot be written as ONNX")
    return pad(words.found(read), words.rank(read), amounts, value, words, node.name)


def pad(read: str, rank: int, amounts: Any, value: float, words: Words, name: str) -> str:
    """Zeros, or another number, before and after axes; amounts as torch has them."""
    before, after = [0] * rank, [0] * rank
    for place in range(len(amounts) // 2):
        before[rank - 1 - place], after[rank - 1 - place] = amounts[2 * place : 2 * place + 2]
    sheet = words.sheet
    if sheet.opset < 11:
        return sheet.write("Pad", [read], name, pads=[*before, *after], value=float(value))
    pads = sheet.whole([*before, *after], f"{name}_pads")
    if value == 0:
        return sheet.write("Pad", [read, pads], name)
    held = sheet.constant(f"{name}_value", np.array(value, dtype=np.float32))
    return sheet.write("Pad", [read, pads, held], name)


def _unflatten(node: fx.Node, words: Words) -> str:
    read, axis, inner = _args(node)
    shape = words.shapes[read.name]
    behind = len(shape) - 1 - axis
    # Zeros copy sizes by place, so those behind the new axes have to be said.
    if behind > 1:
        raise OnnxError(f"unflatten at {node.name} cannot be written as ONNX")
    wanted = [0] * axis + list(inner) + [-1] * behind
    given = words.sheet.whole(wanted, f"{node.name}_shape")
    return words.sheet.write("Reshape", [words.found(read), given], node.name)


def _permute(node: fx.Node, words: Words) -> str:
    read, *order = _args(node)
    flat = order[0] if isinstance(order[0], (tuple, list)) else order
    perm = [words.axis(read, own) for own in flat]
    return words.sheet.write("Transpose", [words.found(read)], node.name, perm=perm)


def _reshape(node: fx.Node, words: Words) -> str:
    read, *shape = _args(node)
    wanted: Any = shape[0] if isinstance(shape[0], (tuple, list)) else shape
    given = sizes(wanted, words, node.name)
    return words.sheet.write("Reshape", [words.found(read), given], node.name)


def _flatten(node: fx.Node, words: Words) -> str:
    if node.args[1:] != (1,):
        raise OnnxError(f"flatten at {node.name} cannot be written as ONNX")
    return words.sheet.write("Flatten", [words.found(_args(node)[0])], node.name, axis=1)


def _expand(node: fx.Node, words: Words) -> str:
    read, *wanted = _args(node)
    shape = [1 if own == -1 else own for own in wanted]
    given = sizes(shape, words, node.name)
    return words.sheet.write("Expand", [words.found(read), given], node.name)


def _item(node: fx.Node, words: Words) -> str:
    read, index = _args(node)
    made = words.found(read)
    for axis, own in enumerate(index if isinstance(index, tuple) else ()):
        bounds = (own.start, own.stop, own.step) if isinstance(own, slice) else (None,) * 3
        if not isinstance(own, slice) or any(isinstance(each, fx.Node) for each in bounds):
            break
        if own != slice(None):
            start, end, step = own.start or 0, own.stop, own.step or 1
            end = sys.maxsize if end is None else end
            made = cut(made, axis, start, end, step, words, node.name)
    else:
        if isinstance(index, tuple):
            return made
    raise OnnxError(f"{index} at {node.name} cannot be written as ONNX")


def _select(node: fx.Node, words: Words) -> str:
    read, axis, place = _args(node)
    index = words.sheet.constant(f"{node.name}_index", np.array(place, dtype=np.int64))
    axis = words.axis(read, axis)
    return words.sheet.write("Gather", [words.found(read), index], node.name, axis=axis)


def _pick(node: fx.Node, words: Words) -> str:
    read, axis, places = _args(node)
    names = [words.found(read), words.found(places)]
    axis = words.axis(read, axis)
    return words.sheet.write("Gather", names, node.name, axis=axis)


def _full(node: fx.Node, words: Words) -> str:
    shape, value = _args(node)[-2:]
    dtype: Any = node.kwargs.get("dtype")
    kind: Any = torch.empty(0, dtype=dtype).numpy().dtype
    held = onnx().numpy_helper.from_array(np.array([value], dtype=kind))
    given = sizes(shape, words, node.name)
    return words.sheet.write("ConstantOfShape", [given], node.name, value=held)


def _size(node: fx.Node, words: Words) -> str:
    read, axis = _args(node)
    whole = words.sheet.write("Shape", [words.found(read)], f"{node.name}_of")
    place = words.sheet.whole([words.axis(read, axis)], f"{node.name}_axis")
    return words.sheet.write("Gather", [whole, place], node.name, axis=0)


def _plain(name: str) -> Callable[[fx.Node, Words], str]:
    def wording(node: fx.Node, words: Words) -> str:
        names = [words.operand(own, node) for own in node.args]
        return words.sheet.write(name, names, node.name)

    return wording


def _clamp(node: fx.Node, words: Words) -> str:
    read, low, high = _args(node)
    if words.sheet.opset < 11:
        bounds = {k: float(v) for k, v in (("min", low), ("max", high)) if v is not None}
        return words.sheet.write("Clip", [words.found(read)], node.name, **bounds)
    names = ["" if own is None else words.operand(own, node) for own in (low, high)]
    return words.sheet.write("Clip", [words.found(read), *names], node.name)


WORDINGS: dict[Any, Callable[[fx.Node, Words], str]] = {
    torch.narrow: _narrow, torch.cat: _cat, F.pad: _pad, "unflatten": _unflatten,
    "permute": _permute, torch.permute: _permute, torch.reshape: _reshape, "reshape": _reshape,
    "expand": _expand, torch.flatten: _flatten, operator.getitem: _item, torch.select: _select,
    torch.index_select: _pick, "size": _size, torch.clamp: _clamp, torch.add: _plain("Add"),
    operator.add: _plain("Add"), operator.iadd: _plain("Add"), operator.sub: _plain("Sub"),
    operator.mul: _plain("Mul"), torch.mul: _plain("Mul"), operator.imul: _plain("Mul"),
    operator.truediv: _plain("Div"), torch.relu: _plain("Relu"), torch.sigmoid: _plain("Sigmoid"),
    "new_full": _full, "clone": _plain("Identity"), "contiguous": _plain("Identity"),
}  # fmt: skip
SIZE_WORDS = {
    operator.add: "Add",
    operator.sub: "Sub",
    operator.mul: "Mul",
    operator.floordiv: "Div",
}


def say_size(node: fx.Node, words: Words) -> str:
    """Write what asks for a size, or computes with sizes, as a vector of one."""
    if node.target not in SIZE_WORDS:
        return _size(node, words)
    names = [
        words.found(own) if isinstance(own, fx.Node) else words.sheet.whole([own], node.name)
        for own in _args(node)
    ]
    return words.sheet.write(SIZE_WORDS[node.target], names, node.name)


def _module(node: fx.Node, module: nn.Module, words: Words) -> str:
    read: Any = _args(node)[0]
    name = words.found(read)
    if isinstance(module, Gather):
        if isinstance(module, Infill):
            name = pad(name, module.axes, module.pad, 0.0, words, f"{node.name}_padded")
        index = words.sheet.constant(f"{node.name}_index", module.indices.numpy())
        return words.sheet.write("Gather", [name, index], node.name, axis=module.axis)
    if isinstance(module, Constant):
        return _constant(node, module, name, words)
    weight, bias = array(module.weight), None if module.bias is None else array(module.bias)
    if isinstance(module, nn.Linear):
        return dense(name, weight, bias, words, node.name)
    if isinstance(module, nn.modules.conv._ConvNd):
        return conv(name, module, weight, bias, words, node.name)
    raise OnnxError(f"{type(module).__name__} at {node.name} cannot be written as ONNX")


def dense(read: str, weight: Any, bias: Any, words: Words, name: str) -> str:
    """A dense layer of any rank: a product, and a sum if it has a bias."""
    held = words.sheet.constant(f"{name}_weight", weight.T)
    made = words.sheet.write("MatMul", [read, held], name)
    if bias is None:
        return made
    return words.sheet.write("Add", [made, words.sheet.constant(f"{name}_bias", bias)], name)


def conv(read: str, module: Any, weight: Any, bias: Any, words: Words, name: str) -> str:
    """A convolution, transposed or not."""
    names = [read, words.sheet.constant(f"{name}_weight", weight)]
    names += [] if bias is None else [words.sheet.constant(f"{name}_bias", bias)]
    attributes: dict[str, Any] = {
        "strides": list(module.stride), "dilations": list(module.dilation), "group": module.groups,
        "pads": [*module.padding, *module.padding], "kernel_shape": list(weight.shape[2:]),
    }  # fmt: skip
    if module.transposed:
        attributes["output_padding"] = list(module.output_padding)
    return words.sheet.write(
        "ConvTranspose" if module.transposed else "Conv", names, name, **attributes
    )


def _constant(node: fx.Node, module: Constant, read: str, words: Words) -> str:
    """A layer that reads nothing: one whose only column is zero, and its bias."""
    bias = None if module.bias is None else array(module.bias)
    kind: Any = array(module.weight).dtype
    if isinstance(module.probe, nn.modules.conv._ConvNd):
        kernel = module.probe.weight.shape[2:]
        lead = (1, module.rows) if module.probe.transposed else (module.rows, 1)
        zeros = np.zeros((*lead, *kernel), dtype=kind)
        return conv(read, module.probe, zeros, bias, words, node.name)
    return dense(read, np.zeros((module.rows, 1), dtype=kind), bias, words, node.name)


def array(tensor: Any) -> Any:
    """A tensor's numbers, as numpy has them."""
    held: Tensor = tensor.detach().cpu()
    return held.contiguous().numpy()
