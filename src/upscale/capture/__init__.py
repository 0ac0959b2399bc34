"""Capture: from a model and an example to a graph and the record of one run of it."""

from upscale.capture.capture_model import capture, collector_paused
from upscale.capture.captured import (
    Call,
    Captured,
    Example,
    Observed,
    Ref,
    home,
    leaves_of,
    tensors_in,
    two_of_each,
)
from upscale.capture.configuration import Configuration, configuration
from upscale.capture.in_place import AUGMENTED, FRESH_MODULES, NO_GRAD, WRITES
from upscale.capture.records import PACKS
from upscale.capture.torch_export import export_turn
from upscale.capture.tracer import turn
from upscale.tools.own_draws import OwnDraws
from upscale.tools.quiet import unwarned

__all__ = ["AUGMENTED", "FRESH_MODULES", "NO_GRAD", "PACKS", "WRITES", "Call", "Captured"]
__all__ += ["Configuration", "Example", "Observed", "OwnDraws", "Ref", "capture"]
__all__ += ["collector_paused", "configuration", "export_turn", "home", "leaves_of"]
__all__ += ["tensors_in", "turn", "two_of_each", "unwarned"]
