"""Executable programs as text for other systems: a program of OpenFHE's Python interface, and MLIR."""
