"""The client's arithmetic (runtime/client/cryptor/arithmetic.py) on the server's kernels."""

from __future__ import annotations

import numpy as np

from heliograph.ckks.primes import is_short
from heliograph.ir import Array
from heliograph.runtime.native.kernels.client import add_product, small_values
from heliograph.runtime.native.kernels.rows import backward_row, forward_row
from heliograph.runtime.native.tables import prime_rows


class NativeArithmetic:
    """The arithmetic with compiled kernels: rows of short primes have words of 32 bits."""

    def __init__(self, ring_dim: int, primes: tuple[int, ...]) -> None:
        # The tables are shared, and kept as long as the whole object that holds them.
        self._tables = prime_rows(ring_dim, primes)
        self.primes, self._known, self._ring_dim = primes, self._tables.known, ring_dim
        self._kinds = [np.uint32 if is_short(prime) else np.uint64 for prime in primes]

    def empty(self, place: int) -> Array:
        return np.empty(self._ring_dim, dtype=self._kinds[place])

    def row(self, residues: Array, place: int) -> Array:
        return residues.astype(self._kinds[place])

    def forward(self, coefficients: Array, place: int) -> Array:
        row = self.row(coefficients, place)
        forward_row(_words(row), 0, place, self._known)
        return row

    def backward(self, values: Array, place: int) -> Array:
        backward_row(_words(values), 0, place, self._known.last[place], self._known)
        return values.astype(np.uint64, copy=False)

    def small(self, coefficients: Array, place: int) -> Array:
        row = self.empty(place)
        small_values(coefficients, _words(row), place, self._known)
        return row

    def factor(self, values: Array, place: int) -> Array:
        return values

    def add_product(self, sums: Array, values: Array, factor: Array, place: int, minus: bool = False) -> None:
        add_product(_words(sums), _words(values), _words(factor), minus, place, self._known)


def _words(row: Array) -> Array:
    """A row as a polynomial of one row (`kernels.rows`), in the same memory."""
    return row.view(np.uint32).reshape(-1, row.size)
