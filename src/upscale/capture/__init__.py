"""Capture: from a model and an example to a graph and the record of one run of it."""

from upscale.capture.augmented import AUGMENTED, FRESH_MODULES, NO_GRAD, WRITES
from upscale.capture.capturing import capture
from upscale.capture.norms import find_norms
from upscale.capture.packing import PACKS, tensors_in
from upscale.capture.record import Call, Captured, Example, Observed, Ref, TensorInfo
from upscale.capture.tracing import home, two_of_each

__all__ = [
    "AUGMENTED",
    "FRESH_MODULES",
    "NO_GRAD",
    "PACKS",
    "WRITES",
    "Call",
    "Captured",
    "Example",
    "Observed",
    "Ref",
    "TensorInfo",
    "capture",
    "find_norms",
    "home",
    "tensors_in",
    "two_of_each",
]
