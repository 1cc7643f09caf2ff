"""An evaluator of our own for the server: ciphertexts and keys as arrays of residues, kernels compiled by numba."""
