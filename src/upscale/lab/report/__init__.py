"""A picture of a plan: who reads which channels of a tensor, before and after ordering."""

from __future__ import annotations

from upscale.errors import PlanError
from upscale.lab.report.drawing import draw
from upscale.lab.report.rows import Read, Reader, Rows, find_rows
from upscale.planning import Plan
from upscale.planning.plan import origin_of

__all__ = ["Read", "Reader", "Rows", "draw", "find_rows", "picture"]

# A picture of a whole plan shows this many tensors at most, those with the most copies.
MOST_TENSORS = 6


def picture(plan: Plan, *, segment: int | None = None) -> str:
    """The plan as an SVG: readers × channels, before and after, kept cells filled, copies marked.

    Draws the tensors whose readers keep different channels, those with the most copies if there
    are many; or, given the number of a segment, all tensors of that segment.

    >>> import torch, upscale
    >>> from torch import nn
    >>> class Fork(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b, self.c = nn.Linear(2, 4), nn.Linear(4, 2), nn.Linear(4, 2)
    ...     def forward(self, x):
    ...         x = self.a(x)
    ...         return self.b(x), self.c(x)
    >>> kept = upscale.Selection(kept={"b": [0, 2], "c": [1, 3]})
    >>> plan = upscale.plan(Fork(), torch.zeros(1, 2), kept)
    >>> print(picture(plan).splitlines()[1])
    <title id="upscale-title">Fork: 2 reads copy before ordering, 0 after</title>
    """
    everything = find_rows(plan)
    name = origin_of(plan).captured.name
    if segment is None:
        shared = tuple(rows for rows in everything if rows.shared)
        by_copies = sorted(shared, key=lambda rows: -rows.copies_before)
        drawn = tuple(rows for rows in shared if rows in by_copies[:MOST_TENSORS])
        left_out = tuple(rows for rows in shared if rows not in drawn)
        return draw(drawn, name=name, left_out=left_out)
    drawn = tuple(rows for rows in everything if rows.segment == segment)
    if not drawn:
        known = sorted({rows.segment for rows in everything if rows.segment is not None})
        raise PlanError(
            f"segment is {segment}; the segments that anything reads are "
            f"{', '.join(map(str, known)) or 'none'}"
        )
    return draw(drawn, name=f"{name}, segment {segment}")
