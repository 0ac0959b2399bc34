"""Verification: the exported model against the masked one, on evidence that is said."""

from upscale.verify.comparing import compare, verify
from upscale.verify.result import TOLERANCE, Verified

__all__ = ["TOLERANCE", "Verified", "compare", "verify"]
