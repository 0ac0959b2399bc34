"""The zero-copy reference, by the path it is documented under."""

from upscale.lab.zero_copy import wrong_numbers_plan, wrong_numbers_zero_copy

__all__ = ["wrong_numbers_plan", "wrong_numbers_zero_copy"]
