"""Timing of primitives: calibration, floors, backends side by side."""
