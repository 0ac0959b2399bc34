"""The command line: `upscale prune`, `inspect`, `bench`, `calibrate` and `sweep`."""

from upscale.cli.main import main

__all__ = ["main"]
