"""The client's arithmetic (runtime/client/cryptor/arithmetic.py) on the server's kernels."""

from __future__ import annotations

import numpy as np

from heliograph.ir import Array
from heliograph.runtime.native import keyswitch
from heliograph.runtime.native.kernels.elementwise import add_product, signed_residues
from heliograph.runtime.native.kernels.transforms import forward_rows
from heliograph.runtime.native.tables import prime_rows


class NativeArithmetic:
    """The arithmetic with compiled kernels, on all cores."""

    def __init__(self, ring_dim: int, primes: tuple[int, ...]) -> None:
        self.primes, self._known = primes, prime_rows(ring_dim, primes)

    def forward(self, coefficients: Array, places: Array) -> Array:
        known = self._known
        forward_rows(coefficients, places, known.moduli, known.outer, known.inner)
        return coefficients

    def backward(self, values: Array, places: Array) -> Array:
        known, out = self._known, np.empty_like(values)
        keyswitch.coefficients(
            values[np.newaxis], out[np.newaxis], places, known.last[places], known.moduli, known.outer, known.inner
        )
        return out

    def factors(self, values: Array, places: Array) -> Array:
        return values

    def small(self, coefficients: Array, places: Array) -> Array:
        rows = np.empty((places.size, coefficients.size), dtype=np.uint64)
        signed_residues(coefficients, rows, places, self._known.moduli)
        return self.forward(rows, places)

    def add_products(self, sums: Array, values: Array, factors: Array, places: Array, minus: bool = False) -> None:
        add_product(sums, values, factors, minus, places, self._known.moduli)
