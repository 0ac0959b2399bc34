"""Unconstrained channel pruning for PyTorch, and the fastest correct export of what it prunes."""

from upscale.api import export, mask, plan, prune, select
from upscale.errors import (
    CaptureError,
    ExampleError,
    OrderingError,
    PlanError,
    SelectionError,
    UpscaleError,
    VerificationError,
)
from upscale.planning import Plan
from upscale.selection.masks import Selection

__version__ = "0.1.0.dev0"

__all__ = [
    "CaptureError",
    "ExampleError",
    "OrderingError",
    "Plan",
    "PlanError",
    "Selection",
    "SelectionError",
    "UpscaleError",
    "VerificationError",
    "__version__",
    "export",
    "mask",
    "plan",
    "prune",
    "select",
]
