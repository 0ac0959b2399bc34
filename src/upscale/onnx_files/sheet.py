"""What a file is written on: nodes in order, and the constants that they want otherwise.

A constant that every reader wants alike is replaced where it stands; where some want it otherwise,
or still as it was, they get one of their own under a new name.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from upscale.onnx_files.reading import onnx

Array = Any  # of numpy, of any kind of number


@dataclass(frozen=True, slots=True, eq=False)
class Wish:
    """One input of a node that shall read other numbers than a constant of the file."""

    node: Any
    place: int
    name: str
    array: Array


@dataclass(slots=True)
class Sheet:
    """Nodes that were written since the last was put in its place, constants, and wishes."""

    opset: int
    taken: set[str]
    written: list[Any] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    wishes: list[Wish] = field(default_factory=list)

    def name(self, wanted: str) -> str:
        """A name that nothing in the file has."""
        tries = (f"{wanted}_{number}" for number in itertools.count(1))
        found = next(own for own in itertools.chain((wanted,), tries) if own not in self.taken)
        self.taken.add(found)
        return found

    def constant(self, wanted: str, array: Array) -> str:
        """The name of a new constant."""
        name = self.name(wanted)
        self.constants[name] = np.ascontiguousarray(array)
        return name

    def whole(self, numbers: Iterable[int], wanted: str) -> str:
        """The name of a new vector of whole numbers."""
        return self.constant(wanted, np.array(list(numbers), dtype=np.int64))

    def write(self, operator: str, inputs: Iterable[str], wanted: str, **attributes: Any) -> str:
        """Write a node that makes one value, and tell its name."""
        made = self.name(wanted)
        own = onnx().helper.make_node(operator, list(inputs), [made], name=made, **attributes)
        self.written.append(own)
        return made

    def collect(self) -> list[Any]:
        """The nodes written since this was last asked."""
        found, self.written = self.written, []
        return found


def settle(sheet: Sheet, nodes: list[Any], model: Any) -> None:
    """Grant all wishes, in the nodes and in the constants of a model."""
    graph = model.graph
    uses = Counter(name for node in nodes for name in node.input)
    uses.update(own.name for own in graph.output)
    holders: dict[str, Any] = {own.name: own for own in graph.initializer}
    for node in nodes:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            holders[node.output[0]] = node.attribute[0].t
    wishes: dict[str, list[Wish]] = {}
    for wish in sheet.wishes:
        wishes.setdefault(wish.name, []).append(wish)
    declared = {own.name: own for own in graph.input}
    for name, own in wishes.items():
        alike = all(np.array_equal(wish.array, own[0].array) for wish in own)
        if alike and len(own) == uses[name] and name in holders:
            _replace(holders[name], own[0].array)
            if name in declared:  # old files list their constants among the inputs, with shapes
                shape = declared[name].type.tensor_type.shape
                for dim, size in zip(shape.dim, own[0].array.shape, strict=True):
                    dim.dim_value = size
            continue
        made: list[tuple[Array, str]] = []
        for wish in own:
            known = next((n for a, n in made if np.array_equal(a, wish.array)), None)
            if known is None:
                known = sheet.constant(f"{name}_pruned", wish.array)
                made.append((wish.array, known))
            wish.node.input[wish.place] = known
    for name, array in sheet.constants.items():
        graph.initializer.append(onnx().numpy_helper.from_array(array, name))


def _replace(holder: Any, array: Array) -> None:
    name = holder.name
    holder.CopyFrom(onnx().numpy_helper.from_array(np.ascontiguousarray(array), name))
