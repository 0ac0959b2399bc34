"""A flow that grows: steps take the place of others, and values appear that are parts of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.relations import Line


class Growing:
    """Collects the steps and values of a flow that is made from another."""

    def __init__(self, flow: ChannelFlow) -> None:
        self._flow = flow
        self.steps: list[Step] = []
        self._classes, self._shapes = dict(flow.classes), dict(flow.shapes)
        self._nbytes = dict(flow.nbytes)

    def flow(self) -> ChannelFlow:
        """The flow with the steps and values collected."""
        return replace(
            self._flow,
            steps=tuple(self.steps),
            classes=self._classes,
            shapes=self._shapes,
            nbytes=self._nbytes,
        )

    def value(self, name: str, shape: Sequence[int], item_bytes: int) -> str:
        """A new value of a shape."""
        self._shapes[name], self._nbytes[name] = tuple(shape), item_bytes * int(np.prod(shape))
        return name

    def line(self, name: str, like: Line, shape: Sequence[int], positions: Positions) -> Line:
        """A line of a new value, with the classes that another has at some positions."""
        line = Line(self.value(name, shape, self.item_bytes(like.value)), like.axis)
        self._classes[line] = self._flow.classes[like][positions]
        return line

    def part(self, line: Line, name: str, positions: Positions | None = None) -> Line:
        """A new value that has some positions of a line, or all of them."""
        if positions is None:
            positions = np.arange(self._flow.sizes[line])
        shape = list(self._flow.shapes[line.value])
        shape[line.axis] = len(positions)
        return self.line(name, line, shape, positions)

    def item_bytes(self, value: str) -> int:
        """What one number of a value weighs."""
        return self._flow.nbytes[value] // max(1, int(np.prod(self._flow.shapes[value])))
