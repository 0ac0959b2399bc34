"""For tests that still import it by this name: see `trials`."""

from trials.lively import calm
from trials.masks import random_selection

__all__ = ["calm", "random_selection"]
