"""Fingerprints: a digest of what a model computes, equal for models that compute the same."""
