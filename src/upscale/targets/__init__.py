"""Targets: where an export will run, and what things cost there."""

# torch is here whatever else is: its runtime need not wait until somebody asks for it.
from upscale.targets import on_torch as on_torch
