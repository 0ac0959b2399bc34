"""Capture: from a model and an example to a graph and the record of one run of it."""

from upscale.capture.record import Call, Captured, Example, Observed, Ref, TensorInfo
from upscale.capture.trace import capture, size_arguments

__all__ = [
    "Call",
    "Captured",
    "Example",
    "Observed",
    "Ref",
    "TensorInfo",
    "capture",
    "size_arguments",
]
