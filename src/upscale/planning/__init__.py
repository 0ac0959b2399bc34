"""Planning: decide orders, layouts and edges; touch no tensor."""

from upscale.planning.plan import Edge, Piece, Plan, SizesRead, Spread
from upscale.planning.search import Way, make_plan

__all__ = ["Edge", "Piece", "Plan", "SizesRead", "Spread", "Way", "make_plan"]
