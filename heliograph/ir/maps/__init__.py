"""Sparse linear maps and where their elements stand: layouts, Kronecker forms, diagonals, steps."""
