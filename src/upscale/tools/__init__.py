"""Small tools that know nothing of pruning."""
