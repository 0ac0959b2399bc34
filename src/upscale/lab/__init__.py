"""The laboratory: sweeps, tuning, models by name, reports. Nothing that prunes imports it."""
