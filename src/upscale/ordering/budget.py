"""Bounded work that does not depend on how busy the machine is."""

from __future__ import annotations


class Budget:
    """A time limit turned into a number of steps, so that equal inputs give equal answers.

    A step is about a microsecond on one core of the machine this was written on; a slower one
    takes proportionally longer, but decides the same.

    >>> budget = Budget(seconds=1e-6)
    >>> budget.spend(2)
    >>> budget.exhausted
    True
    """

    STEPS_PER_SECOND = 1_000_000

    __slots__ = ("steps",)

    def __init__(self, seconds: float) -> None:
        self.steps = round(seconds * self.STEPS_PER_SECOND)

    def spend(self, steps: int) -> None:
        """Take `steps` off what is left."""
        self.steps -= steps

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.steps <= 0
