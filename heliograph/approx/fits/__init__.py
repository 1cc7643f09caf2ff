"""Polynomials for one function on an interval."""
