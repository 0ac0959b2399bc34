"""Unconstrained channel pruning for PyTorch, and the fastest correct export of what it prunes."""

from upscale import interrupts as interrupts  # before torch is loaded, which takes seconds

# isort: split

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
    StateError,
    StoreError,
    TargetError,
    UnverifiedWarning,
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
from upscale.verify import Verified

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
    "StateError",
    "StoreError",
    "Survey",
    "Target",
    "TargetError",
    "UnverifiedWarning",
    "UpscaleError",
    "VerificationError",
    "Verified",
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
