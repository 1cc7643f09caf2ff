"""Levels, scales, rotation keys, chains and the final order."""
