"""Formats: a model in the words of a runtime, in memory. Nothing here writes a file."""
