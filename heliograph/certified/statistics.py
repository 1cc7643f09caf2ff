"""The statistics of a certificate: exact one-sided binomial tests and intervals."""

from __future__ import annotations

import math

import scipy.special

from heliograph.errors import ProgramError


def p_value(count: int, copies: int, tau: float) -> float:
    """The test's p-value: the probability of at least `count` of `copies` votes if each has probability tau."""
    if count <= 0:
        return 1.0
    if count > copies:
        return 0.0
    # P(X >= k) for X ~ Bin(n, tau) is the regularized incomplete beta function I_tau(k, n - k + 1).
    return float(scipy.special.betainc(count, copies - count + 1, tau))


def target_count(copies: int, tau: float, alpha: float) -> int:
    """The smallest count with a p-value of at most alpha (Phoenix, section 6.1); a ProgramError if there is none."""
    if p_value(copies, copies, tau) > alpha:
        needed = math.ceil(math.log(alpha) / math.log(tau))
        raise ProgramError(
            f"{copies} copies cannot show a probability above {tau:g} with an error of {alpha:g}",
            why=f"all of them agree with probability {tau**copies:.2g} where it is just {tau:g}",
            hint=f"n of at least {needed}, a lower tau, or a larger alpha",
        )
    low, high = 0, copies
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if p_value(middle, copies, tau) <= alpha else (middle, high)
    return high


def most_seen(samples: int, rate: float, escape: float) -> int:
    """The largest count that, with this rate or more, is not exceeded with probability at most `escape`; or -1."""
    count = -1
    # P(X <= k) for X ~ Bin(n, rate) is I_(1 - rate)(n - k, k + 1).
    while count + 1 < samples and scipy.special.betainc(samples - count - 1, count + 2, 1.0 - rate) <= escape:
        count += 1
    return count
