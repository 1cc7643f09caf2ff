"""The error that each CKKS primitive adds.

A slot's error is the value of the error polynomial at the slot's root of unity. Its sources are:

* encryption under the secret key: coefficients of standard deviation 3.19;
* rounding, when a rescale or a key switch divides by primes: the two parts are rounded, and the rounding of the second
  is multiplied by the secret. In chains that the planner makes, it is to the nearest. In others, key switches are OpenFHE's,
  which divide by k special primes without exact reduction and round down, so that every coefficient is too small by k/2
  on average (k uniform terms). The error polynomial is then near (1 + X + ... + X^(N-1)) (1 + s) k/2, the same in every
  key switch. It is small except at the slots of low frequency, where it reaches k sqrt(2N/3) N / pi. (Measured: 2^20 in
  slot 0 at N = 2^14, k = 3, against 2^13 elsewhere. Trees whose comparisons had a gap of 5e-6 failed for most keys at
  N = 2^16, k = 12.)
* encoding: coefficients are rounded to whole numbers, standard deviation 1/sqrt(12);
* decryption: the error is estimated from the imaginary parts, which are empty for a real message, and as much is added
  again, so that a decrypted value reveals less about the key; at least sqrt(2 N) / 8 per coefficient (as in OpenFHE).

Errors are complex. Standard deviations here are for the real part of a slot (the same for the imaginary part), before
the division by the scale. Slots with a large error matter even if they hold no value: decryption spreads their error
over all.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from heliograph.ckks.fourier import transform
from heliograph.ckks.ring import SIGMA, Ring
from heliograph.ckks.security import SPARSE_WEIGHT

Array = npt.NDArray[Any]


@functools.lru_cache(maxsize=16)
def _low_frequency_sum(log_ring: int) -> Array:
    """1 + X + ... + X^(N-1) at each slot's root of unity zeta = exp(i pi 5^j / N): 2 / (1 - zeta)."""
    n = 1 << log_ring
    exponents = np.empty(n // 2, dtype=np.int64)
    power = 1
    for j in range(n // 2):
        exponents[j] = power
        power = power * 5 % (2 * n)
    return np.asarray(2.0 / (1.0 - np.exp(1j * math.pi * exponents / n)))


def _slots_std(ring: Ring, coefficient_std: float) -> float:
    """The standard deviation of the real part of a slot, for an error with independent coefficients."""
    return coefficient_std * math.sqrt(ring.ring_dim / 2)


def encryption_std(ring: Ring) -> float:
    return _slots_std(ring, SIGMA)


def encoding_std(ring: Ring) -> float:
    return _slots_std(ring, math.sqrt(1 / 12))


def rescale_std(ring: Ring, parts: int = 2) -> float:
    """The rounding of all parts: the second times a ternary secret with two nonzero coefficients in three, the third
    times its square, with each product of two different coefficients of the secret twice.
    """
    square = 8 * ring.ring_dim**2 / 9 if parts == 3 else 0.0
    return _slots_std(ring, math.sqrt((1 + 2 * ring.ring_dim / 3 + square) / 12))


def switch_std(ring: Ring, level: int) -> float:
    """The random part of a key switch: its own noise and the rounding."""
    return math.hypot(key_std(ring, level), division_std(ring))


def key_std(ring: Ring, level: int) -> float:
    """The noise of the key in a key switch."""
    digits = ring.digits_at(level + 1)
    # Digits are raised without exact reduction, which makes them up to alpha times larger.
    key = SIGMA * math.sqrt(digits * ring.ring_dim / 12) * ring.alpha * 2.0**-ring.special_room
    return _slots_std(ring, key)


def division_std(ring: Ring) -> float:
    """The rounding when a key switch divides by the special primes."""
    sums = 1 if ring.rounds_to_nearest else ring.special
    return math.sqrt(sums) * rescale_std(ring)


def switch_bias(ring: Ring, random: np.random.Generator) -> Array:
    """The error that every key switch under one secret repeats: k/2 of (1 + X + ...) times (1 + s), by slot.

    Because it is the same each time, it adds up coherently in sums of rotations. The secret is drawn at random. There
    is no such error if key switches round to the nearest.
    """
    if ring.rounds_to_nearest:
        return np.zeros(ring.slots, dtype=np.complex128)
    std = math.sqrt(ring.ring_dim / 3)
    secret = random.normal(scale=std, size=ring.slots) + 1j * random.normal(scale=std, size=ring.slots)
    return np.asarray(0.5 * ring.special * _low_frequency_sum(ring.log_ring) * (1.0 + secret))


def decryption_std(ring: Ring, imaginary_std: float) -> float:
    """The noise that decryption adds, given the root mean square of the imaginary parts."""
    return max(imaginary_std, _slots_std(ring, math.sqrt(2 * ring.ring_dim) / 8))


def decryption_fails(ring: Ring, log_scale: float, imaginary_std: float) -> bool:
    """Whether decryption fails: for an error of more than scale / 2**5 per coefficient (as in OpenFHE)."""
    return bool(imaginary_std > 2.0 ** (log_scale - 5) * math.sqrt(ring.ring_dim / 2) / math.sqrt(2))


# Values may be this large at a bootstrap, in units of the nominal scale.
BOOTSTRAP_LIMIT = 2.0
# The modular reduction is fitted up to this size; its remaining error there is nearly a Chebyshev polynomial of degree
# 5.
BOOTSTRAP_FITTED = 1.25
# In the reduction, only the roundings of its first steps count. In units of a value, their error is this times a
# rescale's error, times `bootstrap_share`. (Measured on N = 2^12 to 2^15, scales of 30 to 42 bits: within 0.2 bits.)
_AMPLIFICATION = 40.8
# The same of a series (ckks/trigonometric.py), whatever the chain's share: it uses all of its period. (Measured for
# ReLUs of degrees 15 and 31 on N = 2^11 and 2^12, scales of 32 and 35 bits: within 0.1 bits. Of degree 7 it is twice as
# much.)
_SERIES_AMPLIFICATION = 97.0
# The largest offset of a raised coefficient, in multiples of the first modulus. The offset is a sum of SPARSE_WEIGHT +
# 1 coefficients, each within half of the modulus.
BOOTSTRAP_REACH = (SPARSE_WEIGHT + 1) / 2
_REACH_BITS = math.log2(BOOTSTRAP_REACH)
# The error of the reduction's polynomial, in units of the first modulus.
_POLYNOMIAL = 2.0**-32.9


def bootstrap_std(ring: Ring) -> float:
    """The noise that a bootstrap adds to each slot, in units of values at the nominal scale."""
    return ring.bootstrap_share * math.hypot(
        _AMPLIFICATION * rescale_std(ring) * 2.0**-ring.scale_bits, _transform_std(ring), _POLYNOMIAL
    )


def series_std(ring: Ring) -> float:
    """The noise that a bootstrap with a series adds to each slot, if neither the series nor its slope is above one."""
    half_period = 1.25
    return math.hypot(
        _SERIES_AMPLIFICATION * rescale_std(ring) * 2.0**-ring.scale_bits, 2 * half_period * _transform_std(ring)
    )


def _transform_std(ring: Ring) -> float:
    """The noise of the rounded diagonals of CoeffsToSlots, in units of the first modulus, for full slots.

    A factor of l layers has 2^(l + 1) diagonals. They have the bits of a prime minus an equal share of the bits that
    bring the raised modulus down to the scale. (Measured with two factors, N = 2^11 to 2^13: within a bit; with three
    it is negligible.)
    """
    encode, _ = transform(ring, ring.slots, inverse=True)
    bits = ring.scale_bits - (ring.first_mod_bits + _REACH_BITS - ring.scale_bits) / len(encode)
    factors = math.sqrt(sum(4.0**factor.layers for factor in encode))
    return float(1.7 * factors * math.sqrt(ring.ring_dim / 24) * 2.0**-bits)


def bootstrap_bend(ring: Ring, values: Array) -> Array:
    """The systematic error of a bootstrap on real values, in units of the nominal scale: it returns this much less."""
    return _bend(ring.bootstrap_share, values)


def _bend(share: int, values: Array) -> Array:
    x = values / BOOTSTRAP_FITTED
    left = (2 * math.pi / share) ** 4 / 30 * BOOTSTRAP_FITTED**5 / 16
    return np.asarray(left * x * (16 * x**4 - 20 * x**2 + 5))


@functools.lru_cache(maxsize=256)
def _largest_bend(share: int) -> float:
    """The largest bend on values up to one; cached, because planners need it for thousands of rings with few shares."""
    return float(np.abs(_bend(share, np.linspace(0, 1, 64))).max())


def bootstrap_error(ring: Ring) -> float:
    """The error of a bootstrap on values up to one: noise and bend."""
    return math.hypot(bootstrap_std(ring), _largest_bend(ring.bootstrap_share))
