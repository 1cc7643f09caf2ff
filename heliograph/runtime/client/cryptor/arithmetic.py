"""The client's arithmetic modulo primes: transforms, and pointwise products of polynomials.

If numba is installed, compiled kernels do it. Otherwise numpy does: the same numbers, some ten times slower.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Protocol

import numpy as np

from heliograph.ir import Array
from heliograph.runtime import residues
from heliograph.runtime.residues import Factors


class Arithmetic(Protocol):
    """Polynomials modulo X^N + 1 and one of these primes each: a row of N canonical residues.

    `place` is the index of a row's prime. Values are in the order of runtime/residues.py. Rows have numbers of 64 bits, or
    of 32 where an arithmetic has them for short primes (`empty`). Several threads may use it at once.
    """

    primes: tuple[int, ...]

    def empty(self, place: int) -> Array:
        """A row to be filled."""

    def row(self, residues: Array, place: int) -> Array:
        """A row with these residues of 64 bits: a copy."""

    def forward(self, coefficients: Array, place: int) -> Array:
        """The values of a polynomial given by coefficients: residues of 64 bits."""

    def backward(self, values: Array, place: int) -> Array:
        """The coefficients of a polynomial given by a row of values: residues of 64 bits. May overwrite the row."""

    def small(self, coefficients: Array, place: int) -> Array:
        """The values of a polynomial given by coefficients: int64 (N), smaller than the prime."""

    def factor(self, values: Array, place: int) -> Any:
        """A row in the form that `add_product` takes as a factor."""

    def add_product(self, sums: Array, values: Array, factor: Any, place: int, minus: bool = False) -> None:
        """Add values times a factor to the sums in place, or subtract them with `minus`."""


class NumpyArithmetic:
    """The arithmetic in numpy: all rows have numbers of 64 bits."""

    def __init__(self, ring_dim: int, primes: tuple[int, ...]) -> None:
        self.primes, self._ring_dim = primes, ring_dim

    def empty(self, place: int) -> Array:
        return np.empty(self._ring_dim, dtype=np.uint64)

    def row(self, residues: Array, place: int) -> Array:
        return residues.copy()

    def forward(self, coefficients: Array, place: int) -> Array:
        return residues.forward(coefficients, self.primes[place])

    def backward(self, values: Array, place: int) -> Array:
        return residues.backward(values, self.primes[place])

    def small(self, coefficients: Array, place: int) -> Array:
        return self.forward(residues.residues(coefficients, self.primes[place]), place)

    def factor(self, values: Array, place: int) -> Factors:
        return Factors.of(values, self.primes[place])

    def add_product(self, sums: Array, values: Array, factor: Factors, place: int, minus: bool = False) -> None:
        combined = residues.difference if minus else residues.total
        sums[:] = combined(sums, factor.times(values), self.primes[place])


def arrays_of(factor: Any) -> list[Array]:
    """The arrays behind a factor of either arithmetic."""
    return [factor] if isinstance(factor, np.ndarray) else [factor.numbers, factor.ratios]


def arithmetic(ring_dim: int, primes: tuple[int, ...]) -> Arithmetic:
    """The fastest arithmetic available."""
    if importlib.util.find_spec("numba") is None:
        return NumpyArithmetic(ring_dim, primes)
    from heliograph.runtime.native.client import NativeArithmetic

    return NativeArithmetic(ring_dim, primes)
