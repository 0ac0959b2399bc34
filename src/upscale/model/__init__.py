"""The caller's model: which are taken, plain weights, layers and parameters by name."""
