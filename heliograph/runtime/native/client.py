"""The client's arithmetic (runtime/client/cryptor/arithmetic.py) by the kernels that servers use."""

from __future__ import annotations

import numpy as np

from heliograph.ir import Array
from heliograph.runtime.native import keyswitch
from heliograph.runtime.native.kernels.elementwise import multiply_plain
from heliograph.runtime.native.kernels.transforms import forward_rows
from heliograph.runtime.native.tables import prime_rows


class NativeArithmetic:
    """The arithmetic by kernels, on all cores."""

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

    def products(self, values: Array, factors: Array, places: Array) -> Array:
        out = np.empty_like(values)
        multiply_plain(values[np.newaxis], factors, out[np.newaxis], places, self._known.moduli)
        return out
