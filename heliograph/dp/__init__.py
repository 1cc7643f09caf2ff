"""Differential privacy: accounting, calibration, auditing and training. It is independent of the compiler."""
