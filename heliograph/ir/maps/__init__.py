"""Sparse linear maps and the places of their elements: layouts, Kronecker forms, diagonals, steps."""
