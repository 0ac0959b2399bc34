"""Unconstrained channel pruning for PyTorch, and the fastest correct export of what it prunes."""

from upscale.api import export, mask, plan, prune, select
from upscale.errors import (
    AmountWarning,
    CaptureError,
    ExampleError,
    OrderingError,
    PlanError,
    SelectionError,
    StoreError,
    UpscaleError,
    VerificationError,
)
from upscale.planning import Plan
from upscale.selection.amounts import Amount, Macs, Parameters
from upscale.selection.batches import recalibrate
from upscale.selection.masks import Selection
from upscale.store import load, save

__version__ = "0.1.0.dev0"

__all__ = [
    "Amount",
    "AmountWarning",
    "CaptureError",
    "ExampleError",
    "Macs",
    "OrderingError",
    "Parameters",
    "Plan",
    "PlanError",
    "Selection",
    "SelectionError",
    "StoreError",
    "UpscaleError",
    "VerificationError",
    "__version__",
    "export",
    "load",
    "mask",
    "plan",
    "prune",
    "recalibrate",
    "save",
    "select",
]
