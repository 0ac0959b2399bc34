"""Fine-tuning, by the path it is documented under."""

from upscale.lab.tuning import *  # noqa: F403
