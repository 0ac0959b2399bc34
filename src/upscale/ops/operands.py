"""What a constant rule may ask of a call, and what it may say.

A convolution whose first filter and bias are masked makes a first channel that is zero everywhere.
A sigmoid behind it makes that one half everywhere, whatever the image. A layer that reads it can
add its column, times one half, to its bias, and never read it. Constant rules follow such numbers:

    conv  [ 0 , ? ]   sigmoid  [ 0.5 , ? ]

Each is given what is known of what the call reads, `Known`, and answers with what is then known of
what it makes. A number is stated only where it holds at every place and for every input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from upscale.capture import Call
from upscale.flow.known import Known, Numbers, agreed
from upscale.flow.lines import Line
from upscale.flow.relations import Relation
from upscale.flow.spread import run_on


@dataclass(frozen=True, slots=True)
class Operands:
    """One call, the relation that it states, and what is known of what it reads.

    `owned` are the parameters and buffers by the names of their values; `size` is how many
    positions the result's line has. A `masked` layer reads nothing: its columns are pruned.
    """

    call: Call
    relation: Relation
    of: Callable[[Line], Known]
    owned: Mapping[str, Tensor]
    size: int
    masked: bool = False

    @property
    def read(self) -> Known:
        """What is known of the first line read."""
        return self.of(self.relation.reads[0])

    @property
    def nothing(self) -> Known:
        """What a rule says that knows nothing."""
        return Known.nothing(self.size)

    def parameter(self, name: str) -> Numbers | None:
        """The numbers of the parameter passed for an argument, as wide numbers."""
        held = [self.owned[value] for value in self.call.named(name) if value in self.owned]
        return numbers_of(held[0]) if held else None

    def each(self) -> Iterator[Known]:
        """What is known of every tensor the call is given, along the result's line."""
        lines = {line.value: line for line in self.relation.reads}
        for value in self.call.reads:
            held, line = self.owned.get(value), lines.get(value)
            if held is not None and held.numel() in (1, self.size):
                # A parameter is one number for all, or one for each channel and nothing else.
                alone = held.numel() == 1 or (line is not None and held.shape[line.axis] > 1)
                spread = np.broadcast_to(numbers_of(held).reshape(-1), self.size)
                known = Known(np.array(spread), np.zeros(self.size, dtype=bool))
                yield known if alone or self.size == 1 else self.nothing
            else:
                yield self.nothing if line is None or held is not None else self.of(line)


def numbers_of(held: Tensor) -> Numbers:
    """A tensor's numbers, as wide numbers."""
    numbers: Numbers = held.detach().double().cpu().numpy()
    return numbers


def elementwise(operands: Operands) -> Known:
    """The operation works on each element alone: run it on the numbers themselves.

    Opt in only where it is as good in wide numbers as in the model's: not where it jumps, as
    `floor` does, since rounding then decides, nor where it draws.
    """
    each = list(operands.each())
    where = np.logical_and.reduce([known.constant for known in each])
    if not where.any():
        return operands.nothing
    numbers = [torch.from_numpy(np.where(where, known.numbers, 1.0)) for known in each]
    (result,) = run_on(operands.call, *numbers)
    if result.is_complex():
        return operands.nothing
    made, firm = numbers_of(result), np.logical_and.reduce([known.firm for known in each])
    return Known(made, firm).only(where & np.isfinite(made))


def same(operands: Operands) -> Known:
    """Data only moves, or equal numbers give their like: what all lines read agree on stays."""
    return agreed([operands.of(line) for line in operands.relation.reads])


def zeros_stay(operands: Operands) -> Known:
    """Zero gives zero; of other numbers nothing is known."""
    return operands.read.zeros
