"""Approximation of functions by polynomials, and the plans that evaluate them on ciphertexts."""
