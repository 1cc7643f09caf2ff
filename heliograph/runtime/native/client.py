"""The client's arithmetic (runtime/client/cryptor/arithmetic.py) on the server's kernels."""

from __future__ import annotations

import numpy as np

from heliograph.ir import Array
from heliograph.runtime.native import keyswitch
from heliograph.runtime.native.kernels.elementwise import add_product, signed_residues
from heliograph.runtime.native.kernels.plaintexts import forward_rows
from heliograph.runtime.native.tables import prime_rows


class NativeArithmetic:
    """The arithmetic with compiled kernels, on all cores."""

    def __init__(self, ring_dim: int, primes: tuple[int, ...]) -> None:
        tables = prime_rows(ring_dim, primes, short=False)
        self.primes, self._known = primes, tables.known

    def forward(self, coefficients: Array, places: Array) -> Array:
        forward_rows(_words(coefficients), _rows(places), self._known)
        return coefficients

    def backward(self, values: Array, places: Array) -> Array:
        known, out = self._known, np.empty(values.shape, dtype=np.uint64)
        keyswitch.coefficients(
            _words(np.ascontiguousarray(values))[np.newaxis],
            _words(out)[np.newaxis],
            _rows(places),
            known.last[places],
            known,
        )
        return out

    def factors(self, values: Array, places: Array) -> Array:
        return values

    def small(self, coefficients: Array, places: Array) -> Array:
        rows = np.empty((places.size, coefficients.size), dtype=np.uint64)
        signed_residues(coefficients, _words(rows), _rows(places), self._known)
        return self.forward(rows, places)

    def add_products(self, sums: Array, values: Array, factors: Array, places: Array, minus: bool = False) -> None:
        x, y = _words(np.ascontiguousarray(values)), _words(np.ascontiguousarray(factors))
        add_product(_words(sums), x, y, minus, _rows(places), self._known)


def _words(values: Array) -> Array:
    """Residues of 64 bits (rows, N) as rows of words, in the same memory."""
    return values.view(np.uint32).reshape(-1, values.shape[-1])


def _rows(places: Array) -> Array:
    """The rows of residues modulo the primes at these places, two words each."""
    return np.stack([places, 2 * np.arange(places.size)], axis=1).astype(np.int64)
