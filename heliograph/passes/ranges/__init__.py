"""Ranges of values: observed on samples, widened by margins, proved by intervals."""
