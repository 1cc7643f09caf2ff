"""Compositions of polynomials: sign, argmax, softmax, inverses, exp."""
