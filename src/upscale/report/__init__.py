"""Reports, by the path they are documented under."""

from upscale.lab.report import *  # noqa: F403
