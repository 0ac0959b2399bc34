"""Unconstrained channel pruning for PyTorch, and the fastest correct export of what it prunes."""

from upscale.api import export, mask, plan, select
from upscale.calibration import calibrate
from upscale.errors import (
    AmountWarning,
    CaptureError,
    ExampleError,
    OrderingError,
    PlanError,
    SelectionError,
    SlowerWarning,
    TargetError,
    UpscaleError,
    VerificationError,
)
from upscale.planning import Plan
from upscale.pruning import prune
from upscale.selection.amounts import Amount, Latency, Macs, Parameters
from upscale.selection.batches import recalibrate
from upscale.selection.masks import Selection
from upscale.target import Target
from upscale.timing import Measurement

__version__ = "0.1.0.dev0"

__all__ = [
    "Amount",
    "AmountWarning",
    "CaptureError",
    "ExampleError",
    "Latency",
    "Macs",
    "Measurement",
    "OrderingError",
    "Parameters",
    "Plan",
    "PlanError",
    "Selection",
    "SelectionError",
    "SlowerWarning",
    "Target",
    "TargetError",
    "UpscaleError",
    "VerificationError",
    "__version__",
    "calibrate",
    "export",
    "mask",
    "plan",
    "prune",
    "recalibrate",
    "select",
]
