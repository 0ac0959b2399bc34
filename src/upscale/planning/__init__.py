"""Planning: decide orders, layouts and edges; touch no tensor."""

from upscale.planning.plan import Edge, Folding, Piece, Plan, SizesRead, Spread
from upscale.planning.planner import make_plan

__all__ = ["Edge", "Folding", "Piece", "Plan", "SizesRead", "Spread", "make_plan"]
