"""The OpenFHE backend: the only package that imports `openfhe`."""
