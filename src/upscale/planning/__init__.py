"""Planning: decide orders, layouts and edges; touch no tensor."""

from upscale.planning.plan import Edge, Folding, Piece, Plan, SizesRead, Spread
from upscale.planning.planner import make_plan
from upscale.planning.sums import SUMS, Sum, split_again, split_sums

__all__ = [
    "SUMS",
    "Edge",
    "Folding",
    "Piece",
    "Plan",
    "SizesRead",
    "Spread",
    "Sum",
    "make_plan",
    "split_again",
    "split_sums",
]
