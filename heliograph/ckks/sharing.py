"""The cost of sharing decrypted results: the noise that hides the key-dependent error, and the security claimed for it.

A result with an error of Euclidean length at most t, plus normal noise of standard deviation sigma in each value, is a
release of the Gaussian mechanism with sensitivity t. For n values with errors up to B, t = sqrt(n) B. The adaptive
composition of r such releases has the trade-off function of one with sensitivity sqrt(r) t (Dong, Roth and Su 2022,
corollary 3.3), so the statistical distance of all of them from results that reveal nothing about the key is at most
2 Phi(mu / 2) - 1 with mu = sqrt(r n) B / sigma, and sigma is chosen for a distance of 2**-(s/2).

In the terms of Li, Micciancio, Schultz and Sorrell (CRYPTO 2022), where a distinguisher's advantage of 2**-(s/2) is s
bits, this is (c, s)-security. Their own noise, sqrt(12 r n) 2**(s/2) B, comes from the divergence of Kullback and Leibler
and has 3.1 bits more than this distance needs.

B is not proved. It is the larger of two estimates, with a margin: the artifact's prediction (the largest error of a few
simulated runs), and the least error of encryption and rescaling on this ring, which the client computes by itself. The
server is assumed to be honest: no noise protects against a party that can choose the computation and sees the results.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from heliograph.ckks.noise import encryption_std, rescale_std
from heliograph.ckks.ring import Ring

# Bits of statistical security, -log2 of the statistical distance, and the number of results shared under one key.
SHARE_BITS = 30
DISTANCE_BITS = SHARE_BITS // 2
SHARE_RESULTS = 64
# Inputs chosen to make the error large reached up to 5.6 times the predicted error (benchmarks/sharing.py, 900 runs).
SHARE_MARGIN = 8.0
# A normal error with the floor's standard deviation exceeds this many deviations once in 20 cases.
_FLOOR_DEVIATIONS = 2.0


def sharing_cost_bits(values: int = 1) -> float:
    """The bits of precision that flooding this many values costs, in addition to the predicted error of encryption."""
    # 2 Phi(mu / 2) - 1 is the distance.
    mu = 2.0 * NormalDist().inv_cdf((1.0 + 2.0**-DISTANCE_BITS) / 2.0)
    return math.log2(math.sqrt(SHARE_RESULTS * values) * SHARE_MARGIN / mu)


def flooding_std(scheme_error: float, values: int = 1) -> float:
    """The standard deviation of the noise in each of this many values."""
    return scheme_error * float(2.0 ** sharing_cost_bits(values))


def least_error(ring: Ring, log_scale: float) -> float:
    """A lower bound on the error that an honest artifact predicts: a fresh encryption, rescaled, in values at that
    scale.
    """
    return float(_FLOOR_DEVIATIONS * math.hypot(encryption_std(ring), rescale_std(ring)) * 2.0**-log_scale)
