"""Flows of a few nodes, written by hand."""

from __future__ import annotations

import numpy as np

from upscale.channels import Parameter
from upscale.flow.channel_flow import ChannelFlow, Step
from upscale.flow.lines import Line
from upscale.flow.relations import Reduce


def layer(name: str, read: str, columns: int, rows: int) -> Step:
    """A layer that reads a value of so many channels and makes one named like itself."""
    out, weight = Line(name, 1), Parameter(name)
    relation = Reduce(
        out=out,
        read=Line(read, 1),
        layer=weight,
        weight=weight,
        row_axis=0,
        column_axis=1,
        columns=columns,
        rows=rows,
        groups=1,
        beside=(),
    )
    return Step(name, (read, weight), (name,), (relation,), executed=True)


def fork(**rows: int) -> ChannelFlow:
    """`a` makes 4 channels of the input's 3. Layers that each make so many `rows` read them all;
    if none are named, `b` makes 2 and `c` makes 3. All they make is returned.

    Weights are matrices, `a` of 4 x 3 and `b` of 2 x 4, and every image is one place.
    """
    made = {"a": 4, **(rows or {"b": 2, "c": 3})}
    readers = tuple(made)[1:]
    steps = [layer("a", "x", 3, 4), *(layer(name, "a", 4, made[name]) for name in readers)]
    steps.append(Step("output", readers, (), (), executed=True))
    shapes = {"x": (1, 3), **{name: (1, size) for name, size in made.items()}}
    shapes |= {Parameter(name): (size, 3 if name == "a" else 4) for name, size in made.items()}
    ends = np.cumsum(list(made.values())).tolist()
    return ChannelFlow(
        steps=tuple(steps),
        classes={
            Line(name, 1): np.arange(end - made[name], end)
            for name, end in zip(made, ends, strict=True)
        },
        grids={},
        blocks={},
        shapes=shapes,
        nbytes={value: 4 * int(np.prod(shape)) for value, shape in shapes.items()},
    )
