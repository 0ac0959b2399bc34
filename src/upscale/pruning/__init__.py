"""Whole jobs: prune, survey, undo, and what of a model can be pruned at all."""
