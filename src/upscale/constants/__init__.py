"""Constants: channels that hold one known number, whatever the model is given."""

from upscale.constants.finding import find_constants
from upscale.constants.known import Known
from upscale.constants.rules import NORMS, pads
from upscale.constants.scaled import Scaled, find_scaled

__all__ = ["NORMS", "Known", "Scaled", "find_constants", "find_scaled", "pads"]
