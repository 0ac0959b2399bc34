"""Planning: decide orders, layouts and edges; touch no tensor."""

from upscale.lowering.gates import (
    Gating,
    added,
    alone,
    columns_read,
    gated_weight,
    read_gates,
)
from upscale.lowering.repeats import computed_once, repeat_again, repeat_constants
from upscale.lowering.sums import Sum, split_again, split_sums
from upscale.planning.plan import Edge, Folding, Piece, Plan, SizesRead, Spread
from upscale.planning.pricing import Pricing
from upscale.planning.search import make_plan

__all__ = [
    "Edge",
    "Folding",
    "Gating",
    "Piece",
    "Plan",
    "Pricing",
    "SizesRead",
    "Spread",
    "Sum",
    "added",
    "alone",
    "columns_read",
    "computed_once",
    "gated_weight",
    "make_plan",
    "read_gates",
    "repeat_again",
    "repeat_constants",
    "split_again",
    "split_sums",
]
