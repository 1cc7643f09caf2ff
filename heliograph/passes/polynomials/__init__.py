"""From activations to polynomials on [-1, 1]."""
