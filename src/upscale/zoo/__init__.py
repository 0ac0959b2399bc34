"""Models by name, by the path they are documented under."""

from upscale.lab.zoo import *  # noqa: F403
