"""The security table: the largest modulus for each ring."""

from __future__ import annotations

from heliograph.errors import SecurityError, said

# Largest log2(PQ) for 128-bit classical security with a uniform ternary secret and sigma 3.19, by log2 of the ring
# dimension: Bossuat et al., "Security Guidelines for Implementing Homomorphic Encryption" (2024), table 5.2. It is
# stricter than the 2018 table that OpenFHE 1.6.1 checks (27, 54, 109, 218, 438, 881, then the same) and has the same
# estimator's limits for all dimensions; docs/security.md says how to compute them again.
MAX_LOG_PQ_128 = {10: 26, 11: 53, 12: 106, 13: 214, 14: 430, 15: 868, 16: 1747, 17: 3523}
# The number of nonzero coefficients in the ephemeral secret of bootstraps.
SPARSE_WEIGHT = 32
# A lower bound on the cost (log2) of the best attack on its key, at up to 126 bits of modulus, by log2 of the ring
# dimension. Larger rings are harder at the same modulus. The costs are estimates; docs/security.md says how they were
# made.
_SPARSE_ATTACK = {15: 139, 16: 164}
# Largest log2(q) of one sample with 128 bits for a ternary secret of that weight and sigma 3.2, by log2 of the ring
# dimension, as estimated by others: jdumezy/sparse-key-estimate, Precomputed-Tables/128bits_security.md at commit 44e10687,
# by the rotated primal hybrid attack of Ogilvie, eprint 2026/279.
SPARSE_MAX_LOG_Q_128 = {12: 19, 13: 37, 14: 77, 15: 164, 16: 349}


def sparse_attack(log_ring: int) -> int | None:
    """A lower bound on log2 of the best known attack's cost on the sparse secret's key; None without an estimate."""
    return max((bits for log, bits in _SPARSE_ATTACK.items() if log <= log_ring), default=None)


def sparse_max_log_q(log_ring: int) -> int:
    """The largest log2 of the modulus of the sparse secret's key by the published table; larger rings allow more."""
    return max((bits for log, bits in SPARSE_MAX_LOG_Q_128.items() if log <= log_ring), default=0)


def max_log_pq(log_ring: int, security_bits: int) -> int:
    """The largest log2(PQ) with the requested security."""
    if security_bits != 128:
        raise SecurityError(
            f"a security level of {security_bits} bits is not in our table",
            why="the table has 128 bits, classical",
            hint=said("use {security_bits=128} (or None, for tests, without any security)"),
        )
    if log_ring not in MAX_LOG_PQ_128:
        raise SecurityError(f"ring dimension 2^{log_ring} is not in the security table")
    return MAX_LOG_PQ_128[log_ring]
