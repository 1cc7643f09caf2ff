"""Products of two encrypted matrices."""
