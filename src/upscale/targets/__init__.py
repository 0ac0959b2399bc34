"""Targets: where an export will run, and what things cost there."""
