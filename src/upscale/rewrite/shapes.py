"""Shapes: what the model asks of a tensor's sizes, answered as the original model sees them."""

from __future__ import annotations

from typing import Any

from torch import fx

from upscale.capture import Captured
from upscale.capture.node_queries import asks_rank, axis_asked
from upscale.planning.plan import GraphChanges
from upscale.rewrite.building import Building


class Shapes:
    """Answers: a line's size is a number, the others are asked of a tensor that is there."""

    def __init__(self, building: Building, captured: Captured, changes: GraphChanges) -> None:
        self._building, self._captured, self._asked = building, captured, changes.asked

    def sizes(self, node: fx.Node) -> Any:
        """The size, or sizes, that a node asks for."""
        value = self._value(node)
        rank = len(self._captured.values[value].shape)
        axis = axis_asked(node)
        if axis is not None:
            return self._size(value, axis % rank)
        return tuple(self._size(value, axis) for axis in range(rank))

    def ask(self, node: fx.Node) -> Any:
        """What pruning does not change, asked of a tensor that is there."""
        value = self._value(node)
        if asks_rank(node):
            return len(self._captured.values[value].shape)
        anchor = self._building.values[self._asked[value].anchor]()
        return self._building.graph.create_node(node.op, node.target, (anchor, *node.args[1:]))

    def _value(self, node: fx.Node) -> Any:
        (operand,) = node.all_input_nodes
        return self._captured.observed[node.name].reads[operand.name]

    def _size(self, value: str, axis: int) -> Any:
        asked = self._asked[value]
        if axis in asked.fixed:
            return asked.fixed[axis]
        anchor = self._building.values[asked.anchor]()
        return self._building.graph.call_method("size", (anchor, asked.axes[axis]))
