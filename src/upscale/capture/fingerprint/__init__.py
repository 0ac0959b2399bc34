"""Fingerprints: a digest of what a model computes, equal for models that compute the same."""

from upscale.capture.fingerprint.digests import (
    FORMAT,
    difference,
    digests_of_constants,
    fingerprint,
    made_for,
)
from upscale.capture.fingerprint.normal_form import CodeLine, normal_form

__all__ = [
    "FORMAT",
    "CodeLine",
    "difference",
    "digests_of_constants",
    "fingerprint",
    "made_for",
    "normal_form",
]
