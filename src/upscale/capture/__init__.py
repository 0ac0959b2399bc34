"""Capture: from a model and an example to a graph and the record of one run of it."""

from upscale.capture.capture_model import capture
from upscale.capture.captured import Call, Captured, Observed, Ref, TensorInfo
from upscale.capture.configuration import Configuration, configuration
from upscale.capture.example import Example, leaves_of, tensors_in, two_of_each
from upscale.capture.in_place import AUGMENTED, FRESH_MODULES, NO_GRAD, WRITES
from upscale.capture.origin import home
from upscale.capture.records import PACKS
from upscale.capture.tracing_turns import export_turn, turn
from upscale.tools.own_draws import OwnDraws
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
