"""Order channels so that each consumer's lie side by side: plain integers in and out."""

from upscale.ordering.answer import Ordering, check
from upscale.ordering.solver import solve

__all__ = ["Ordering", "check", "solve"]
