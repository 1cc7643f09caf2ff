"""Differential privacy: accounting, calibration, auditing and training. It stands apart from the compiler."""
