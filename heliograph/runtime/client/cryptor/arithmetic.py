"""What the client computes modulo primes: transforms, and products of polynomials by their values.

By kernels that numba compiles where it is installed, else in numpy: the same numbers, some ten times slower.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from heliograph.ir import Array
from heliograph.runtime import residues
from heliograph.runtime.residues import Factors


class Arithmetic(Protocol):
    """Polynomials modulo X^N + 1 and some of these primes: (n, N), canonical residues (uint64), a row for each prime.

    `places` says which of the primes the rows are of. Values stand in the order of runtime/residues.py.
    """

    primes: tuple[int, ...]

    def forward(self, coefficients: Array, places: Array) -> Array:
        """The values of polynomials by their coefficients, which may be written over."""

    def backward(self, values: Array, places: Array) -> Array:
        """The coefficients of polynomials by their values, which may be written over."""

    def factors(self, values: Array, places: Array) -> Any:
        """Values as what others are multiplied by."""

    def small(self, coefficients: Array, places: Array) -> Array:
        """The values of a polynomial by its coefficients: int64 (N), smaller than the primes."""

    def add_products(self, sums: Array, values: Array, factors: Any, places: Array, minus: bool = False) -> None:
        """Add to sums, or take from them, values times factors, in place."""


class NumpyArithmetic:
    """The arithmetic in numpy."""

    def __init__(self, ring_dim: int, primes: tuple[int, ...]) -> None:
        self.primes = primes

    def forward(self, coefficients: Array, places: Array) -> Array:
        return np.stack([residues.forward(row, q) for row, q in self._rows(coefficients, places)])

    def backward(self, values: Array, places: Array) -> Array:
        return np.stack([residues.backward(row, q) for row, q in self._rows(values, places)])

    def factors(self, values: Array, places: Array) -> list[Factors]:
        return [Factors.of(row, q) for row, q in self._rows(values, places)]

    def small(self, coefficients: Array, places: Array) -> Array:
        rows = np.stack([residues.residues(coefficients, self.primes[place]) for place in places])
        return self.forward(rows, places)

    def add_products(
        self, sums: Array, values: Array, factors: list[Factors], places: Array, minus: bool = False
    ) -> None:
        combined = residues.difference if minus else residues.total
        for row, x, factor, place in zip(sums, values, factors, places, strict=True):
            row[:] = combined(row, factor.times(x), self.primes[place])

    def _rows(self, values: Array, places: Array) -> Sequence[tuple[Array, int]]:
        return [(row, self.primes[place]) for row, place in zip(values, places, strict=True)]


def arrays_of(factors: Any) -> list[Array]:
    """The arrays that factors of either arithmetic are in."""
    if isinstance(factors, np.ndarray):
        return [factors]
    return [array for each in factors for array in (each.numbers, each.ratios)]


def arithmetic(ring_dim: int, primes: tuple[int, ...]) -> Arithmetic:
    """The fastest one that is there."""
    if importlib.util.find_spec("numba") is None:
        return NumpyArithmetic(ring_dim, primes)
    from heliograph.runtime.native.client import NativeArithmetic

    return NativeArithmetic(ring_dim, primes)
