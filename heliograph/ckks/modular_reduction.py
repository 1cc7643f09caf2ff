"""The modular reduction of bootstrapping, in numbers: a value near a whole number becomes its distance from it.

exp(2 pi i x) has period one. The exponential of an eighth of the angle is a polynomial, three squarings follow, and the
imaginary parts of the result and of its square, sin(phi) and sin(2 phi), together give the small angle.

Others take the cosine and double its angle (Han and Ki, "Better Bootstrapping for Approximate Homomorphic Encryption",
2020). Near zero, where most multiples lie, a cosine is flat: there, three doublings amplify an error up to 64 times,
squarings of the exponential 8 times. The slots are complex anyway.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from heliograph.ckks.noise import BOOTSTRAP_FITTED
from heliograph.ckks.ring import REDUCTION_LEVELS

Array = npt.NDArray[Any]
SQUARINGS = 3
DEGREE = 31
# The levels of the polynomial and of the squarings, and one for the square of the result.
assert (DEGREE + 1).bit_length() - 1 + SQUARINGS + 1 == REDUCTION_LEVELS


@functools.lru_cache(maxsize=16)
def exponential(reach: float) -> Array:
    """Complex coefficients in Chebyshev's basis of exp(2 pi i reach y / 2^SQUARINGS), |y| up to 1."""
    turn = 2 * math.pi * reach / 2**SQUARINGS
    even = chebyshev.chebinterpolate(lambda y: np.cos(turn * y), DEGREE)
    odd = chebyshev.chebinterpolate(lambda y: np.sin(turn * y), DEGREE)
    # The other coefficients are zero up to rounding.
    even[1::2] = odd[::2] = 0
    found: Array = even + 1j * odd
    return found


@functools.cache
def angle(share: float) -> tuple[float, float]:
    """(a, b) with u close to a sin(phi) - b sin(2 phi), phi = 2 pi u / share, fitted for u up to `BOOTSTRAP_FITTED`."""
    u = BOOTSTRAP_FITTED * np.cos(np.pi * (np.arange(64) + 0.5) / 128)
    phi = 2 * np.pi * u / share
    (a, b), *_ = np.linalg.lstsq(np.stack([np.sin(phi), -np.sin(2 * phi)], axis=1), u, rcond=None)
    return float(a), float(b)
