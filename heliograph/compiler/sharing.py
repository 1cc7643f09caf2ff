"""What it costs to pass a decrypted result on: the noise that hides the key-dependent error."""

from __future__ import annotations

import math

# Flooding hides the key-dependent error statistically: so many bits, for so many results under one key.
SHARE_BITS = 30
SHARE_RESULTS = 64
# The predicted error is the largest of a few simulated runs; flooding reckons with this many times as much.
SHARE_MARGIN = 4.0


def sharing_cost_bits() -> float:
    """The bits of precision that flooding costs, beside the predicted error of encryption.

    The noise has sqrt(12 r) 2**(s/2) times the error's size, which Li, Micciancio, Schultz and Sorrell (CRYPTO 2022)
    give for s bits of statistical security and r results that one key decrypts for strangers. The error is the predicted
    one with a margin, not a worst case.
    """
    return SHARE_BITS / 2 + math.log2(math.sqrt(12.0 * SHARE_RESULTS) * SHARE_MARGIN)


def flooding_std(scheme_error: float) -> float:
    """The standard deviation of the noise."""
    return scheme_error * float(2.0 ** sharing_cost_bits())
