"""Vectors of slots as polynomials: the canonical embedding, by one Fourier transform of half the ring's size."""

from __future__ import annotations

import functools
import math

import numpy as np
import scipy.fft

from heliograph.errors import RangeError
from heliograph.ir import Array
from heliograph.runtime.native.elementwise import scaled_residues
from heliograph.runtime.native.tables import ChainTables, with_ratio
from heliograph.runtime.native.transforms import forward_rows

# Coefficients of this many bits are exact as floating-point numbers and as numbers of 64 bits.
_EXACT_BITS = 62


def coefficients_of(values: Array, slots: int) -> Array:
    """The N real coefficients of the polynomial whose slots are `values`, real or complex, repeated over all slots.

    Slot j is the value at zeta^(5^j), zeta = exp(pi i / N). With 5^j = 4 t + 1 these are the values at zeta omega^t, with
    omega of order N / 2: a Fourier transform of c_k = (m_k + i m_(k + N/2)) zeta^k.
    """
    size = values.size
    spectrum = np.empty(size, dtype=np.complex128)
    spectrum[_places(size)] = values
    twisted = scipy.fft.fft(spectrum, norm="forward", overwrite_x=True) * _twists(size)
    found = np.zeros((2, slots))
    # What repeats is a polynomial in X^(slots / size).
    found[0, :: slots // size] = twisted.real
    found[1, :: slots // size] = twisted.imag
    return found.reshape(-1)


def encode(values: Array, log_scale: float, level: int, tables: ChainTables) -> Array:
    """The values times 2^log_scale, rounded, as residues in evaluation: (level + 1, N). Raises RangeError if too large."""
    primes, rows, known = tables.primes[: level + 1], tables.rows[: level + 1], tables.known
    # A number that stands in all slots is a polynomial of that coefficient alone, and its own value everywhere.
    alone = values.size == 1 and not np.iscomplexobj(values)
    found = values if alone else coefficients_of(values, tables.slots)
    largest = float(np.abs(found).max(initial=0.0))
    if not math.isfinite(largest):
        raise RangeError("a plaintext holds NaN or infinity")
    bits = log_scale + (math.log2(largest) if largest else -log_scale)
    room = math.log2(math.prod(tables.primes[: level + 1])) - 1
    if bits >= room:
        raise RangeError(f"a plaintext of size {np.abs(values).max():.3g} is too large at scale 2^{log_scale:.1f}")
    shift = max(0, math.ceil(bits) + 1 - _EXACT_BITS)
    whole = np.rint(found * 2.0 ** (log_scale - shift)).astype(np.int64)
    out = np.empty((level + 1, whole.size), dtype=np.uint64)
    factors = with_ratio([1 << shift] * (level + 1), primes)
    scaled_residues(whole, factors, out, rows, known.moduli)
    if alone:
        return np.repeat(out, tables.ring_dim, axis=1)
    forward_rows(out, rows, known.moduli, known.outer, known.inner)
    return out


@functools.lru_cache(maxsize=32)
def _places(size: int) -> Array:
    """Where slot j stands among the values at zeta omega^t: t = (5^j - 1) / 4."""
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
