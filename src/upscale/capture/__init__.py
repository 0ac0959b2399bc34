"""Capture: from a model and an example to a graph and the record of one run of it."""

from upscale.capture.capturing import capture
from upscale.capture.configuration import Configuration, configuration
from upscale.capture.in_place import AUGMENTED, FRESH_MODULES, NO_GRAD, WRITES
from upscale.capture.packing import PACKS, leaves_of, tensors_in
from upscale.capture.record import Call, Captured, Example, Observed, Ref, TensorInfo
from upscale.capture.tracing import home, two_of_each
from upscale.capture.turns import export_turn, turn
from upscale.tools.draws import OwnDraws
from upscale.tools.quiet import unwarned

__all__ = [
    "AUGMENTED",
    "FRESH_MODULES",
    "NO_GRAD",
    "PACKS",
    "WRITES",
    "Call",
    "Captured",
    "Configuration",
    "Example",
    "Observed",
    "OwnDraws",
    "Ref",
    "TensorInfo",
    "capture",
    "configuration",
    "export_turn",
    "home",
    "leaves_of",
    "tensors_in",
    "turn",
    "two_of_each",
    "unwarned",
]
