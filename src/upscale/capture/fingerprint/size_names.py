"""Names for sizes among the numbers an operation is given: "size 2 of input 0".

`x.reshape(x.shape[0], 8, 36)` on another example would say another first number, and must not get
another fingerprint for it. The 8 is written in the model's code and stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType
from typing import Any

from torch import fx
from torch.utils._pytree import tree_leaves

from upscale.capture.captured import Captured
from upscale.capture.node_queries import asks_sizes, axis_asked, size_arguments


class Sizes:
    """Says numbers of the operations of one node.

    A number that is written in the model's code is said as it is. One that is computed there from
    sizes is said by the input it is a size of, if it is one: another example has another.
    """

    def __init__(self, captured: Captured, node: fx.Node, inputs: Mapping[str, int]) -> None:
        self._captured, self._inputs = captured, inputs
        seen = captured.observed[node.name]
        computed = [x for x in node.all_input_nodes if not any(tree_leaves(seen.reads[x.name]))]
        # A function or module of several operations may compute sizes where nobody looks.
        opaque = node.op == "call_module" or isinstance(node.target, FunctionType)
        self._open = bool(computed) or (opaque and len(seen.calls) > 1)
        self._places: list[Any] = []
        self._written: set[int] = set()
        self._asked: list[int] = []
        if self._open:
            start = size_arguments(node)
            if start is not None and len(seen.calls) == 1:
                given = node.args[start:]
                self._places = list(given[0] if isinstance(given[0], (list, tuple)) else given)
            fx.node.map_aggregate(
                (node.args, node.kwargs), lambda x: self._written.add(x) if type(x) is int else x
            )
            self._asked = [axis for operand in computed for axis in self._axes(operand)]

    def say(self, number: int, place: int | None = None, places: int = 0) -> str:
        """A number in words; `place` is where it stands if it is one of so many sizes."""
        asked = self._asked
        if not self._open:
            return str(number)
        if place is not None and len(self._places) == places:
            given = self._places[place]
            if not isinstance(given, fx.Node):
                return str(number)
            asked = self._axes(given)
        elif place is not None and len(self._places) == 1 and _asks_shape(self._places[0]):
            asked = [place]
        elif number in self._written:
            return str(number)
        found = (
            f"size {axis} of input {order}"
            for value, order in self._inputs.items()
            for axis, size in enumerate(self._captured.values[value].shape)
            if size == number and (axis in asked or not asked)
        )
        return next(found, str(number))

    def _axes(self, node: fx.Node) -> list[int]:
        """The axes whose sizes a number is computed from."""
        axes: list[int] = []
        waiting: list[tuple[fx.Node, int | None]] = [(node, None)]
        known = set()
        while waiting:
            here, index = waiting.pop()
            if asks_sizes(here):
                axis = axis_asked(here)
                axis = index if axis is None else axis
                value = self._captured.observed[here.all_input_nodes[0].name].result
                if axis is not None and isinstance(value, str):
                    axes.append(axis % max(1, len(self._captured.values[value].shape)))
                continue
            index = next((x for x in here.args[1:2] if type(x) is int), None)
            for operand in here.all_input_nodes:
                if operand not in known:
                    known.add(operand)
                    waiting.append((operand, index))
        return axes


def _asks_shape(given: Any) -> bool:
    return isinstance(given, fx.Node) and asks_sizes(given) and axis_asked(given) is None
