"""Channel flow: which channels every position of every tensor carries."""
