"""Timing of primitives: calibration of the cost table, and backends side by side."""
