"""Rewriting: apply a plan to a copy of the model."""
