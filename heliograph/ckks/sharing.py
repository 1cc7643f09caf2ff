"""The cost of sharing decrypted results: the noise that hides the key-dependent error, and the security claimed for it.

Li, Micciancio, Schultz and Sorrell (CRYPTO 2022) flood with a standard deviation of sqrt(12 r) 2**(s/2) times a bound
on the error, for r results that one key decrypts for untrusted parties and s bits of statistical security. The bound is
on the Euclidean length of all values that are shared at once: for n values with errors up to B it is sqrt(n) B.

s counts as in their (c, s)-security, where a distinguisher's advantage of 2**-(s/2) is s bits. The divergence of all r
results is at most 2**-s / 24, so their statistical distance from results that reveal nothing about the key is at most
2**-17.8 for s = 30.

B is not proved. It is the larger of two estimates, with a margin: the artifact's prediction (the largest error of a few
simulated runs), and the least error of encryption and rescaling on this ring, which the client computes by itself. The
server is assumed to be honest: no noise protects against a party that can choose the computation and sees the results.
"""

from __future__ import annotations

import math

from heliograph.ckks.noise import encryption_std, rescale_std
from heliograph.ckks.ring import Ring

# Bits of statistical security, and the number of results shared under one key.
SHARE_BITS = 30
SHARE_RESULTS = 64
# Inputs chosen to make the error large reached up to 5.6 times the predicted error (benchmarks/sharing.py, 900 runs).
SHARE_MARGIN = 8.0
# A normal error with the floor's standard deviation exceeds this many deviations once in 20 cases.
_FLOOR_DEVIATIONS = 2.0


def sharing_cost_bits(values: int = 1) -> float:
    """The bits of precision that flooding this many values costs, in addition to the predicted error of encryption."""
    return SHARE_BITS / 2 + math.log2(math.sqrt(12.0 * SHARE_RESULTS * values) * SHARE_MARGIN)


def flooding_std(scheme_error: float, values: int = 1) -> float:
    """The standard deviation of the noise in each of this many values."""
    return scheme_error * float(2.0 ** sharing_cost_bits(values))


def sharing_distance_bits() -> float:
    """-log2 of the statistical distance claimed for all results together, by Pinsker's inequality."""
    divergence = 2.0**-SHARE_BITS / 24
    return -math.log2(math.sqrt(divergence / 2))


def least_error(ring: Ring, log_scale: float) -> float:
    """A lower bound on the error that an honest artifact predicts: a fresh encryption, rescaled, in values at that
    scale.
    """
    return float(_FLOOR_DEVIATIONS * math.hypot(encryption_std(ring), rescale_std(ring)) * 2.0**-log_scale)
