"""Constants: channels that hold one known number, whatever the model is given."""

from upscale.constants.finding import find_constants
from upscale.constants.known import Known
from upscale.constants.rules import pads

__all__ = ["Known", "find_constants", "pads"]
