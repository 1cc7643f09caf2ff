"""The canonical embedding: between vectors of complex slots and polynomials with real coefficients.

It is one Fourier transform of half the ring's size, in floating point. Nothing here is encrypted.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from heliograph.errors import RangeError

Array = npt.NDArray[Any]
# A rounded coefficient of up to this many bits is exact both as a floating-point number and as a 64-bit integer.
_EXACT_BITS = 62


def coefficients_of(values: Array, slots: int) -> Array:
    """The N real coefficients of the polynomial with these slots, real or complex, repeated over all slots.

    Slot j is the value at zeta^(5^j), zeta = exp(pi i / N). With 5^j = 4 t + 1 these are the values at zeta omega^t,
    with omega of order N / 2: a Fourier transform of c_k = (m_k + i m_(k + N/2)) zeta^k.
    """
    return spread(coefficients_of_run(values), 2 * slots)


def coefficients_of_run(values: Array) -> Array:
    """The coefficients in a ring with as many slots as values; its dimension is twice their number."""
    size = values.size
    spectrum = np.empty(size, dtype=np.complex128)
    spectrum[_places(size)] = values
    twisted = scipy.fft.fft(spectrum, norm="forward", overwrite_x=True) * _twists(size)
    return np.concatenate([twisted.real, twisted.imag])


def half_of_coefficients(values: Array) -> Array:
    """The first half of `coefficients_of_run` for real values: m_(N - k) = -m_k gives the others, and m_(N / 2) = 0.

    The transform of real numbers computes half of its results, because c_(N / 2 - k) mirrors c_k: half the work.
    """
    size = values.size
    spectrum = np.empty(size)
    spectrum[_places(size)] = values
    middle = size // 2 + 1
    twisted = scipy.fft.rfft(spectrum, norm="forward", overwrite_x=True) * _twists(size)[:middle]
    return np.concatenate([twisted.real[:size], -twisted.imag[size - middle : 0 : -1]])


def spread(coefficients: Array, count: int) -> Array:
    """Coefficients spread by zeros to `count` of them: repeated values give a polynomial in a power of X."""
    if coefficients.size == count:
        return coefficients
    found = np.zeros(count)
    found[:: count // coefficients.size] = coefficients
    return found


def rounded_at(coefficients: Array, log_scale: float, what: str) -> tuple[Array, int, float]:
    """(coefficients times 2^log_scale, rounded to whole doubles; a left shift; the bits of the largest).

    The left shift, in bits, is still to be applied to the doubles, which stay within 62 bits so that they are also
    exact as 64-bit integers. Raises RangeError for NaN and infinity.
    """
    largest = float(np.abs(coefficients).max(initial=0.0))
    if not math.isfinite(largest):
        raise RangeError(f"{what} holds NaN or infinity")
    bits = log_scale + math.log2(largest) if largest else 0.0
    shift = max(0, math.ceil(bits) + 1 - _EXACT_BITS)
    return np.rint(coefficients * 2.0 ** (log_scale - shift)), shift, bits


def slots_of(coefficients: Array) -> Array:
    """The slots of the polynomial with these N real coefficients: the inverse of `coefficients_of`."""
    half = coefficients.size // 2
    twisted = np.empty(half, dtype=np.complex128)
    twisted.real, twisted.imag = coefficients[:half], coefficients[half:]
    twisted *= _untwists(half)
    return np.asarray(scipy.fft.ifft(twisted, norm="forward", overwrite_x=True)[_places(half)])


@functools.lru_cache(maxsize=32)
def _places(size: int) -> Array:
    """The place of slot j among the values at zeta omega^t: t = (5^j - 1) / 4."""
    places = np.empty(size, dtype=np.int64)
    power = 1
    for j in range(size):
        places[j] = power >> 2
        power = power * 5 % (4 * size)
    return places


@functools.lru_cache(maxsize=32)
def _twists(size: int) -> Array:
    """zeta^-k for k below N / 2."""
    twists: Array = np.exp(np.arange(size) * (-0.5j * math.pi / size))
    return twists


@functools.lru_cache(maxsize=32)
def _untwists(size: int) -> Array:
    """zeta^k for k below N / 2."""
    return _twists(size).conj()
