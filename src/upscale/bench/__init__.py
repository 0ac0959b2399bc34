"""Benchmarks: what to compare an export with, and how to time it."""
