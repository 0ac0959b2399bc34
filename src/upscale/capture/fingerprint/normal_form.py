"""The normal form of what a model computes: one line an operation, however it is spelled.

It lists the operations behind what a model returns, in the order in which data flows: each by its
name without overload, its literal arguments and the lines it reads. It does not tell how the model
was traced or spelled, nor the example's batch and image size as far as the graph leaves them free;
values of weights are not in it. Arguments that are at their default are left out, so a version of
torch that adds some changes nothing.

>>> from torch import nn
>>> from upscale.capture import Example, capture
>>> model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten())
>>> for line in normal_form(capture(model, Example.of(torch.zeros(1, 3, 6, 6)))):
...     print(line.text)
input 0 of 4 axes
0.weight (8, 3, 3, 3)
0.bias (8,)
conv2d(input=%0, weight=%1, bias=%2, padding=1)
relu(self=%3)
reshape(self=%4, axes='1, 3')
returns %5 []
training True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_unflatten

from upscale.capture.captured import Call, Captured, Ref, schema_of
from upscale.capture.fingerprint import spelling
from upscale.capture.fingerprint.size_names import Sizes
from upscale.channels import Parameter


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of the normal form; what it says of itself, and the node it comes from."""

    text: str
    said: str
    node: str


def normal_form(captured: Captured) -> tuple[CodeLine, ...]:
    """What a model computes, line by line."""
    return tuple(_NormalForm(captured).written())


class _NormalForm:
    """Writes the normal form of one capture."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._lines: list[CodeLine] = []
        self._numbers: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        # Which call made a value, and in which node.
        self._makers = {
            out: (node, call)
            for node, seen in captured.observed.items()
            for call in seen.calls
            for out in call.outs
            if out not in call.reads
        }
        self._nodes = {node.name: node for node in captured.graph.nodes}
        self._own = next((x.dtype for x in captured.example.tensors if x.is_floating_point()), None)
        self._inputs, self._constants = self._given()

    def written(self) -> list[CodeLine]:
        """All lines: what leads to the output, what is written besides, and the mode."""
        output = next(node for node in reversed(self._captured.graph.nodes) if node.op == "output")
        tree = self._captured.observed[output.name].result
        spec = getattr(getattr(output.graph._codegen, "pytree_info", None), "out_spec", None)
        leaves = tree_leaves(tree, is_leaf=lambda x: x is None)
        if spec is not None and spec.num_leaves == len(leaves):
            tree = tree_unflatten(leaves, spec)
        for value in leaves:
            if value is not None:
                self._follow(value)
        for node, seen in self._captured.observed.items():
            for call in seen.calls:
                if call.outs and schema_of(call.overload).written:
                    self._follow_write(node, call)
        literals = [x for x in tree_leaves(output.args) if isinstance(x, (int, float, str))]
        text = f"returns {self._structure(tree)} {literals}"
        self._lines.append(CodeLine(text, text.replace("%", "line "), output.name))
        training = f"training {self._captured.training}"
        return [*self._lines, CodeLine(training, training, output.name)]

    def _given(self) -> tuple[dict[str, int], dict[str, str]]:
        """The values that are inputs, by number, and those the graph holds, by digest."""
        inputs: dict[str, int] = {}
        constants: dict[str, str] = {}
        for node in self._captured.graph.nodes:
            made = self._captured.observed[node.name].makes
            values = [value for value in made if not isinstance(value, Parameter)]
            if node.op == "placeholder":
                for value in values:
                    inputs.setdefault(value, len(inputs))
            elif node.op == "get_attr" and str(node.target) in self._captured.constants:
                constants |= dict.fromkeys(values, self._captured.constants[str(node.target)])
        return inputs, constants

    def _follow(self, value: str) -> None:
        """Write the lines that a value comes from, each after what it reads."""
        waiting = [value]
        while waiting:
            source = self._source(waiting[-1])
            if source in self._numbers:
                waiting.pop()
                continue
            made = self._makers.get(source)
            reads = () if made is None else made[1].reads
            missing = [read for read in reads if self._source(read) not in self._numbers]
            if missing:
                waiting += reversed(missing)
            elif made is None:
                self._write_leaf(source)
            else:
                self._write_call(*made)

    def _follow_write(self, node: str, call: Call) -> None:
        """Write a call whose result nobody reads, but that writes into what may stay."""
        if all(self._source(out) not in self._numbers for out in call.outs):
            for read in call.reads:
                self._follow(read)
            self._write_call(node, call)

    def _source(self, value: str) -> str:
        """The value that a value is, but for its place in memory."""
        found = value
        while found not in self._sources and found in self._makers:
            _, call = self._makers[found]
            same = spelling.is_identity(call, self._captured.values, self._own)
            if found != call.outs[0] or not same:
                break
            found = call.args[0].value
        return self._sources.setdefault(value, self._sources.get(found, found))

    def _write_leaf(self, value: str) -> None:
        shape = self._captured.values[value].shape
        if value in self._inputs:
            said = f"input {self._inputs[value]} of {len(shape)} axes"
        elif isinstance(value, Parameter):
            said = f"{value.removeprefix('@')} {shape}"
        else:
            said = f"constant {self._constants.get(value) or self._spelled(value, shape)}"
        self._numbers[value] = f"%{len(self._lines)}"
        self._lines.append(CodeLine(said, said, value.partition(":")[0]))

    def _spelled(self, value: str, shape: tuple[int, ...]) -> str:
        """What is known of a tensor that torch makes of numbers in the code: `x[:, [2, 0]]`."""
        node = self._nodes.get(value.partition(":")[0])
        said = () if node is None else tree_leaves((node.args, node.kwargs))
        numbers = [own for own in said if isinstance(own, (int, float))]
        return f"{shape} {numbers}"

    def _write_call(self, node: str, call: Call) -> None:
        name, number = spelling.plain_name(call), len(self._lines)
        sizes = None
        if spelling.takes_sizes(name):
            sizes = Sizes(self._captured, self._nodes[node], self._inputs)
        if sizes and (name in spelling.RESHAPES or name == "expand"):
            words = spelling.reshaped if name in spelling.RESHAPES else spelling.expanded
            shape = self._captured.values[call.outs[0]].shape
            axes = words(self._shape(call.args[0]), shape, sizes.say)
            arguments = {"self": call.args[0], "axes": axes + self._on_one(node, call)}
        else:
            arguments = _arguments(call)
        if name == "slice":
            _drop_open_ends(arguments, self._shape(call.args[0])[call.arguments["dim"]])
        written = {
            key: self._argument(value, None if key in spelling.NO_SIZES else sizes)
            for key, value in arguments.items()
        }
        given = ", ".join(f"{key}={text}" for key, text in written.items())
        literal = ", ".join(f"{k}={t}" for k, t in written.items() if "%" not in t)
        name = "reshape" if name in spelling.RESHAPES else name
        hidden = " of memory written within" if call.aliased else ""
        said = f"{name}({literal})" if literal else name
        self._lines.append(CodeLine(f"{name}({given}){hidden}", said, node))
        for place, out in enumerate(call.outs):
            self._numbers[out] = f"%{number}.{place}" if place else f"%{number}"

    def _on_one(self, node: str, call: Call) -> str:
        """What a reshape does to the example itself, if that is not what it does to two of it.

        Two samples with two channels become `(2, 2, 64)` by either of `x.view(n, c, -1)` and
        `x.view(c, c, -1)`; one becomes `(1, 2, 64)` by the first alone.
        """
        if spelling.plain_name(call) == "expand" or len(self._captured.observed[node].calls) > 1:
            return ""
        (read, out), sizes = (call.reads[0], call.outs[0]), self._captured.sizes
        before, after = self._shape(call.args[0]), self._captured.values[out].shape
        if spelling.splits_alike(before, after, sizes[read], sizes[out]):
            return ""
        return f"; of one: {sizes[read]} to {sizes[out]}"

    def _shape(self, ref: Ref) -> tuple[int, ...]:
        return self._captured.values[ref.value].shape

    def _argument(self, value: Any, sizes: Sizes | None) -> str:
        if isinstance(value, Ref):
            return self._numbers[self._source(value.value)]
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._argument(inner, sizes) for inner in value)}]"
        if isinstance(value, torch.dtype):
            return "own" if value == self._own else str(value).removeprefix("torch.")
        if type(value) is int:
            return sizes.say(value) if sizes else str(value)
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return repr(value)
        return type(value).__name__

    def _structure(self, tree: Any) -> str:
        if isinstance(tree, str):
            return self._numbers[self._source(tree)]
        if isinstance(tree, Mapping):
            return f"{{{', '.join(f'{k!r}: {self._structure(v)}' for k, v in tree.items())}}}"
        if isinstance(tree, (list, tuple)):
            inner = ", ".join(map(self._structure, tree))
            return f"[{inner}]" if isinstance(tree, list) else f"({inner})"
        if tree is None:
            return "nothing"
        return f"{type(tree).__name__}{self._structure(tree_leaves(tree))}"


@cache
def _kinds(overload: Any) -> dict[str, tuple[bool, int | None, bool]]:
    """Of each argument whether it has a default, how many numbers it takes, if a fixed count, and
    whether it is a fraction."""
    taken = overload._schema.arguments
    return {a.name: (a.has_default_value(), a.N, str(a.type) == "float") for a in taken}


def _arguments(call: Call) -> dict[str, Any]:
    """The arguments of a call that are not at their default, by name."""
    said, defaults = {}, schema_of(call.overload).defaults
    for name, (optional, length, fraction) in _kinds(call.overload).items():
        value, default = call.arguments[name], defaults[name]
        if spelling.unsaid(call, name) or (optional and value is default):
            continue
        if isinstance(value, (list, tuple)) and length and len(set(map(repr, value))) == 1:
            value = value[0]
            default = default[0] if isinstance(default, list) and default else default
        if fraction and type(value) is int:
            value = float(value)
        if not (optional and type(value) is type(default) and value == default):
            said[name] = value
    return said


def _drop_open_ends(arguments: dict[str, Any], size: int) -> None:
    """Leave out where a slice starts or ends if that is where its axis does."""
    if arguments.get("start") == 0:
        del arguments["start"]
    end = arguments.get("end")
    if end is not None and end >= size:
        del arguments["end"]
