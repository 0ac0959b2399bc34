"""Unconstrained channel pruning for PyTorch, and the fastest correct export of what it prunes."""

from upscale import deploy
from upscale.api import export, mask, plan, select
from upscale.calibration import calibrate
from upscale.errors import (
    AmountWarning,
    CaptureError,
    DeployError,
    ExampleError,
    OrderingError,
    PlanError,
    SelectionError,
    SizeError,
    SlowerWarning,
    StoreError,
    TargetError,
    UpscaleError,
    VerificationError,
)
from upscale.mapping import ChannelMap, channel_maps
from upscale.planning import Plan
from upscale.pruning import prune
from upscale.selection.amounts import Amount, Latency, Macs, Parameters
from upscale.selection.batches import recalibrate
from upscale.selection.masks import Selection
from upscale.store import load, save
from upscale.surveying import Survey, survey
from upscale.target import Target
from upscale.timing import Measurement
from upscale.undoing import undo

__version__ = "0.1.0.dev0"

__all__ = [
    "Amount",
    "AmountWarning",
    "CaptureError",
    "ChannelMap",
    "DeployError",
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
    "SizeError",
    "SlowerWarning",
    "StoreError",
    "Survey",
    "Target",
    "TargetError",
    "UpscaleError",
    "VerificationError",
    "__version__",
    "calibrate",
    "channel_maps",
    "deploy",
    "export",
    "load",
    "mask",
    "plan",
    "prune",
    "recalibrate",
    "save",
    "select",
    "survey",
    "undo",
]
