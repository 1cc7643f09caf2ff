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

    def products(self, values: Array, factors: Any, places: Array) -> Array:
        """Values times factors."""


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

    def products(self, values: Array, factors: list[Factors], places: Array) -> Array:
        return np.stack([factor.times(row) for factor, row in zip(factors, values, strict=True)])

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
