"""The command line: `upscale prune`, `inspect`, `bench` and `calibrate`."""

from upscale.cli.main import main

__all__ = ["main"]
