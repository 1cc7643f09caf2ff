"""The client's arithmetic modulo primes: transforms, and pointwise products of polynomials.

If numba is installed, compiled kernels do it. Otherwise numpy does: the same numbers, some ten times slower.
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

    `places` are the indices of the rows' primes. Values are in the order of runtime/residues.py.
    """

    primes: tuple[int, ...]

    def forward(self, coefficients: Array, places: Array) -> Array:
        """The values of polynomials given by coefficients; may overwrite its argument."""

    def backward(self, values: Array, places: Array) -> Array:
        """The coefficients of polynomials given by values; may overwrite its argument."""

    def factors(self, values: Array, places: Array) -> Any:
        """The values in the form that `add_products` takes as factors."""

    def small(self, coefficients: Array, places: Array) -> Array:
        """The values of a polynomial given by coefficients: int64 (N), smaller than the primes."""

    def add_products(self, sums: Array, values: Array, factors: Any, places: Array, minus: bool = False) -> None:
        """Add values times factors to the sums in place, or subtract them with `minus`."""


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
    """The arrays behind the factors of either arithmetic."""
    if isinstance(factors, np.ndarray):
        return [factors]
    return [array for each in factors for array in (each.numbers, each.ratios)]


def arithmetic(ring_dim: int, primes: tuple[int, ...]) -> Arithmetic:
    """The fastest arithmetic available."""
    if importlib.util.find_spec("numba") is None:
        return NumpyArithmetic(ring_dim, primes)
    from heliograph.runtime.native.client import NativeArithmetic

    return NativeArithmetic(ring_dim, primes)
