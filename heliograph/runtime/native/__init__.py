"""Our own evaluator for the server: ciphertexts and keys as arrays of residues, kernels compiled by numba."""
