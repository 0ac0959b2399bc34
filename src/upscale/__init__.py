"""Unconstrained channel pruning for PyTorch, and the fastest correct export of what it prunes."""

from upscale import deploy
from upscale.api import export, mask, plan, prune, select
from upscale.errors import (
    AmountWarning,
    CaptureError,
    DeployError,
    ExampleError,
    OrderingError,
    PlanError,
    SelectionError,
    StoreError,
    UpscaleError,
    VerificationError,
)
from upscale.mapping import ChannelMap, channel_maps
from upscale.planning import Plan
from upscale.selection.amounts import Amount, Macs, Parameters
from upscale.selection.batches import recalibrate
from upscale.selection.masks import Selection
from upscale.store import load, save
from upscale.undoing import undo

__version__ = "0.1.0.dev0"

__all__ = [
    "Amount",
    "AmountWarning",
    "CaptureError",
    "ChannelMap",
    "DeployError",
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
    "undo",
]
