"""Lowering: masks, constants, folds, gates, sums and repeats become steps of the flow."""
