"""Planning: decide orders, layouts and edges; touch no tensor."""

from upscale.planning.making import make_plan
from upscale.planning.plan import Edge, Folding, Piece, Plan, SizesRead, Spread
from upscale.planning.pricing import Pricing
from upscale.planning.repeats import computed_once, repeat_again, repeat_constants
from upscale.planning.sums import Sum, split_again, split_sums

__all__ = [
    "Edge",
    "Folding",
    "Piece",
    "Plan",
    "Pricing",
    "SizesRead",
    "Spread",
    "Sum",
    "computed_once",
    "make_plan",
    "repeat_again",
    "repeat_constants",
    "split_again",
    "split_sums",
]
