"""Recovery: what is left of a pruned model is refitted, without labels, to what it computed."""
