"""A selection as a value: which channels each layer keeps, and what that amounts to. No torch."""
