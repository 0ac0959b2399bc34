"""What lowering hands on: a flow in which all that masks bring about is a step like any other.

Take `y = relu(bn(conv(x)))` with channel 3 of `bn` masked to zero and a linear that reads `y`. Zero
stays zero through relu, so the linear's column 3 meets nothing: it leaves (`kept`). Were it a
sigmoid instead, the column would always meet 0.5: it leaves too, and half of it goes into the
linear's bias (`folds`). No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from upscale.channels import Positions
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.lines import Line


@dataclass(frozen=True, slots=True)
class Masks:
    """Output channels that are zero, and how they come to be.

    `after` names them by the module behind which they are zero. Most are `zeroed` in parameters,
    at positions along an axis; the rest is `held` at zero at run time.
    """

    after: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    zeroed: Mapping[str, Mapping[int, tuple[int, ...]]] = field(default_factory=dict)
    held: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Folding:
    """Columns of a weight that always meet one number each, and need not be read for it.

    What they add goes `into` the weight of one of them that is read for all; if that is `None`,
    into the bias. If the layer pads, and there is none, every number must be zero.
    """

    columns: tuple[int, ...]
    into: int | None
    pads: bool


@dataclass(frozen=True, slots=True)
class Gating:
    """Columns of a layer's weight that always meet a number times a gate's.

    The layer does not read them. A small layer beside it, with a `weight` of its own, reads the
    gate's channels, and what it makes of them is added to what `node` makes: the layer's own, or
    that of the BatchNorm behind it, by whose scale it is multiplied then.
    """

    layer: str
    columns: tuple[int, ...]
    gate: str
    axis: int
    node: str
    norm: str | None
    weight: str


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A flow to plan for, and what masks have made of it.

    `kept` are the columns that each weight still reads, by its value; `windows` those it may read
    beside them, with zeros for weights. `renamed` is what a node computes that the flow knows under
    another name; `unreached` are weights that a selection names and nothing reads, `fixed` sizes
    that the graph takes for granted.
    """

    flow: ChannelFlow
    kept: Mapping[str, Positions]
    windows: Mapping[str, Positions] = field(default_factory=dict)
    masks: Masks = field(default_factory=Masks)
    folds: Mapping[str, Folding] = field(default_factory=dict)
    gates: Mapping[str, Gating] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    unreached: frozenset[str] = frozenset()
    fixed: tuple[str, ...] = ()


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
