"""Kernels on residues that numba compiles, with their tables and bounds."""
