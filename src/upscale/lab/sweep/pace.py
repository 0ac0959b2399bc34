"""The pace of a sweep: how much is done, and how long the rest will take."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Pace:
    """Counts of cells, those that run alone apart from the others, and the seconds they took.

    >>> pace = Pace({False: 4, True: 1}, workers=2)
    >>> pace.left_seconds is None
    True
    >>> pace.count(alone=False, seconds=10.0, failed=False)
    >>> pace.left_seconds  # three cells on two workers, then one alone
    25.0
    """

    cells: dict[bool, int]
    workers: int = 1
    done: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    seconds: dict[bool, float] = field(default_factory=lambda: {False: 0.0, True: 0.0})
    failed: int = 0

    def count(self, *, alone: bool, seconds: float, failed: bool) -> None:
        """Take note of a cell that is finished."""
        self.done[alone] += 1
        self.seconds[alone] += seconds
        self.failed += failed

    @property
    def left_seconds(self) -> float | None:
        """What the cells left will take, if they take what those before did; None at first."""
        finished = sum(self.done.values())
        if not finished:
            return None
        usual = sum(self.seconds.values()) / finished
        left = 0.0
        for alone, cells in self.cells.items():
            done = self.done[alone]
            mean = self.seconds[alone] / done if done else usual
            left += (cells - done) * mean / (1 if alone else max(1, self.workers))
        return left

    def __str__(self) -> str:
        told = [f"{sum(self.done.values())} of {sum(self.cells.values())} cells"]
        if self.failed:
            told.append(f"{self.failed} failed")
        if self.left_seconds is not None:
            told.append(f"about {spell(self.left_seconds)} left")
        return ", ".join(told)


def spell(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> spell(7.2), spell(150), spell(9000)
    ('7 s', '2 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
