"""Sweeps, by the path they are documented under."""

from upscale.lab.sweep import *  # noqa: F403
