"""Unconstrained channel pruning for PyTorch, and the fastest correct export of what it prunes."""

from upscale.tools import interrupts as interrupts  # before torch is loaded, which takes seconds

# isort: split

from upscale import deploy
from upscale.api import export, mask, plan, select
from upscale.errors import (
    AmountWarning,
    BatchError,
    CaptureError,
    DeployError,
    ExampleError,
    OnnxError,
    OrderingError,
    PlanError,
    RecoveryError,
    RecoveryWarning,
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
from upscale.model.batches import recalibrate
from upscale.onnx_files import from_onnx, prune_onnx, write_onnx
from upscale.planning import Plan
from upscale.pruning.heads import heads
from upscale.pruning.prune import prune
from upscale.pruning.survey import Survey, survey
from upscale.pruning.undo import ChannelMap, channel_maps, undo
from upscale.recovery.recover import Recovery, recover
from upscale.selected.amounts import Amount, Latency, Macs, Parameters
from upscale.selected.heads import Heads
from upscale.selected.selection import Selection
from upscale.store import load, save
from upscale.targets.racing import Measurement
from upscale.targets.runtime import calibrate
from upscale.targets.target import Target
from upscale.verify import Verified

__version__ = "0.1.0.dev0"

__all__ = [
    "Amount",
    "AmountWarning",
    "BatchError",
    "CaptureError",
    "ChannelMap",
    "DeployError",
    "ExampleError",
    "Heads",
    "Latency",
    "Macs",
    "Measurement",
    "OnnxError",
    "OrderingError",
    "Parameters",
    "Plan",
    "PlanError",
    "Recovery",
    "RecoveryError",
    "RecoveryWarning",
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
    "from_onnx",
    "heads",
    "load",
    "mask",
    "plan",
    "prune",
    "prune_onnx",
    "recalibrate",
    "recover",
    "save",
    "select",
    "survey",
    "undo",
    "write_onnx",
]
