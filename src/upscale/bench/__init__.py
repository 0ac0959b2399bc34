"""Benchmarks, by the path they are documented under."""
