"""Proved errors of polynomials."""
