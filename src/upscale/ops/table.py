"""The table: what is known of each ATen operation, all of it in one entry.

The words that rules are written with can be imported from here.

>>> register("demo::double", Operation(flow=lambda call, walk: None))
>>> OPERATIONS["demo::double"].constants is None, OPERATIONS["demo::double"].adds
(True, False)
>>> OPERATIONS["demo::never_heard_of"].flow is None
True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from upscale.capture import Call
from upscale.flow.known import Known
from upscale.flow.lines import Line
from upscale.flow.walk import Declined, Walk
from upscale.ops.operands import Operands

# The words that rules are written with, and what enters them.
__all__ = ["Call", "Declined", "Known", "Line", "Operands", "Walk"]
__all__ += ["OPERATIONS", "ConstantRule", "FlowRule", "Operation", "register"]

FlowRule = Callable[[Call, Walk], None]
ConstantRule = Callable[[Operands], Known]


@dataclass(frozen=True, slots=True)
class Operation:
    """What is known of an operation. Every facet is off until its entry says otherwise.

    - `flow`: how it moves, ties, mixes or reduces channels. Without it the operation freezes
      what it touches.
    - `constants`: what it makes of channels that hold one number everywhere. Without it nothing
      it makes counts as constant, so nothing is folded behind it.
    - `adds`: it is a sum of its two operands, the second times `alpha`.
    - `multiplies`: it is a product of its two operands.
    - `broadcasts`: it repeats its operand along axes of length one.
    - `hands_on`: its result is its operand, number by number; dropout's, where it drops nothing.
    - `normalises`: it scales and shifts each channel by its `weight` and `bias`, and in
      evaluation by its statistics; by nothing else.
    - `resizes`: the sizes of what it makes stand among its arguments, and shrink with the channels.
    - `attends`: it mixes places by weights that it computes from them.
    - `stored`: a saved file may name it.

    Whether it writes in place, or shares memory with what it is given, is no facet: its schema
    and one run of the model tell.
    """

    flow: FlowRule | None = None
    constants: ConstantRule | None = None
    adds: bool = False
    multiplies: bool = False
    broadcasts: bool = False
    hands_on: bool = False
    normalises: bool = False
    resizes: bool = False
    attends: bool = False
    stored: bool = False


class _Table(dict[str, Operation]):
    def __missing__(self, name: str) -> Operation:
        """Of an operation that is not in the table nothing is known."""
        return Operation()


OPERATIONS = _Table()


def register(names: str, operation: Operation) -> None:
    """Enter operations that are alike in every facet: ATen's names without overload, in one text.

    An operation of another library has its namespace before its name: `demo::gate`.
    """
    OPERATIONS.update(dict.fromkeys(names.split(), operation))
