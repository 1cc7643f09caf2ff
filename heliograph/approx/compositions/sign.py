"""Polynomials for sign(x) on gap <= |x| <= 1, by composition.

Families:

* `iterated`: the f4 and g4 of Cheon, Kim and Kim (2020), used by Phoenix (section 5), with the fewest polynomials that
  reach the closeness.
* `hetal`: the same for the f and g of degree 7 of HETAL's comparison.
* `minimax`: compositions of odd minimax polynomials (Lee, Lee, No and Kim, 2021), all of one degree.
* `best`: the cheapest chain of such stages, by dynamic programming over their degrees.

Each minimax stage is fitted to the proved image of the one before. Its coefficients are scaled so that it maps [-1, 1]
into [-1, 1], so every argument lies in [-1, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from heliograph.approx import cache
from heliograph.approx.evaluate import plan_polynomial
from heliograph.approx.fits.minimax import Minimax, remez
from heliograph.approx.proofs import proof
from heliograph.approx.result import SignPlan, Stage, Vector, bits
from heliograph.errors import ProgramError
from heliograph.ir.analysis.depth import depth_of_degree

FAMILIES = ("iterated", "minimax", "best", "hetal")
COSTS = ("depth", "multiplications")
DEGREES = tuple(range(3, 32, 2))
DEFAULT_SCALE_BITS = 50
_MOST_BITS = 45.0  # floats end at 53 bits, and the proofs round outward a few times
_MOST_STAGES = 24
_LEAST_LEVEL = 2.0**-47
_COARSE = 0.05
_HALVINGS = 50


def _stage(monomials: list[float], divisor: float) -> Stage:
    poly2cheb = np.polynomial.chebyshev.poly2cheb
    odd = [0.0] * (2 * len(monomials))
    odd[1::2] = monomials
    return Stage(tuple(float(c) / divisor for c in poly2cheb(odd)))


# (sharpening f, widening g)
F4 = _stage([315, -420, 378, -180, 35], 128)
G4 = _stage([5850, -34974, 97015, -113492, 46623], 1024)
F3 = _stage([35, -35, 21, -5], 16)
G3 = _stage([4589, -16577, 25614, -12860], 1024)


@dataclass(frozen=True, slots=True)
class Chain:
    """Stages, with the proved image [low, high] of [gap, 1] under the true polynomials."""

    stages: tuple[Stage, ...]
    low: float
    high: float

    @property
    def closeness(self) -> float:
        return max(1.0 - self.low, self.high - 1.0)


def sign(
    gap: float,
    precision_bits: float,
    family: str = "best",
    *,
    cost: str = "depth",
    max_depth: int | None = None,
    scale_bits: int = DEFAULT_SCALE_BITS,
) -> SignPlan:
    """The plan with values at gap <= |x| <= 1 proved to be within 2^-precision_bits of sign(x).

    `cost` is minimised by `best`: depth (then multiplications), or multiplications (then depth) within `max_depth`.
    Raises `ProgramError` for a gap of zero or below the resolution of 2^scale_bits, and for bits out of reach.
    """
    _check(gap, precision_bits, family, cost, scale_bits)
    closeness = 2.0**-precision_bits
    if family in ("iterated", "hetal"):
        return _iterated(gap, closeness, family, scale_bits, max_depth)
    if family == "minimax":
        return _equal_degrees(gap, closeness, scale_bits, max_depth)
    return _cheapest(gap, closeness, cost, scale_bits, max_depth)


def _check(gap: float, precision_bits: float, family: str, cost: str, scale_bits: int) -> None:
    if family not in FAMILIES:
        raise ProgramError(f"there is no family {family!r} of sign polynomials", hint="one of " + ", ".join(FAMILIES))
    if cost not in COSTS:
        raise ProgramError(f"there is no cost {cost!r}", hint="one of " + ", ".join(COSTS))
    if not 0 < precision_bits <= _MOST_BITS:
        raise ProgramError(f"precision_bits {precision_bits:g} is not above 0 and at most {_MOST_BITS:g}")
    if not 0 < gap < 1:
        raise ProgramError(
            f"gap {gap:g} is not between 0 and 1",
            why="a polynomial is continuous: values closer to zero than the gap have no sign",
            hint="give the smallest difference that must be resolved, in units of the range",
        )
    least = 4 * proof.unit(scale_bits)
    if gap <= least:
        raise ProgramError(
            f"gap {gap:g} is below the precision of a scale of 2^{scale_bits}",
            why=f"one operation errs by up to {proof.unit(scale_bits):.2g}",
            hint=f"a gap above {least:.2g}, or a scale of at least 2^{math.ceil(proof.NOISE_BITS + 3 - math.log2(gap))}",
        )


def plan_of_chain(
    chain: Chain, gap: float, family: str, scale_bits: int, dq: int | None = None, dp: int | None = None
) -> SignPlan:
    """The plan of a chain."""
    rounding = proof.rounding_error(chain.stages[-1].coefficients, scale_bits)
    return SignPlan(
        stages=chain.stages,
        domain=((-1.0, -gap), (gap, 1.0)),
        error=chain.closeness + rounding,
        rounding=rounding,
        scale_bits=scale_bits,
        gap=gap,
        closeness_bits=bits(chain.closeness),
        family=family,
        dq=dq,
        dp=dp,
    )


@lru_cache(maxsize=4096)
def iterated_image(pair: str, gap: float, dq: int, dp: int, scale_bits: int) -> tuple[float, float]:
    """The image of [gap, 1] under f^dp(g^dq(x)), each argument widened by the rounding of the stage before."""
    if dq + dp == 0:
        return gap, 1.0
    low, high = iterated_image(pair, gap, dq - (dp == 0), max(dp - 1, 0), scale_bits)
    sharpen, widen = (F4, G4) if pair == "iterated" else (F3, G3)
    if dq + dp > 1:
        before = sharpen if dp > 1 else widen
        slip = proof.rounding_error(before.coefficients, scale_bits)
        low, high = low - slip, high + slip
    return proof.image((sharpen if dp else widen).coefficients, low, high, 2e-5)


def iterated_chain(pair: str, gap: float, dq: int, dp: int, scale_bits: int) -> Chain:
    """The chain of dq widening and dp sharpening polynomials, with the proved image of [gap, 1]."""
    sharpen, widen = (F4, G4) if pair == "iterated" else (F3, G3)
    return Chain((widen,) * dq + (sharpen,) * dp, *iterated_image(pair, gap, dq, dp, scale_bits))


def _iterated(gap: float, closeness: float, family: str, scale_bits: int, max_depth: int | None) -> SignPlan:
    most = _MOST_STAGES if max_depth is None else min(_MOST_STAGES, max_depth // F4.depth)
    nearest = 0.0
    for count in range(1, most + 1):
        found = [iterated_chain(family, gap, count - dp, dp, scale_bits) for dp in range(count + 1)]
        best = min(found, key=lambda chain: chain.closeness)
        if best.closeness <= closeness:
            dp = found.index(best)
            return plan_of_chain(best, gap, family, scale_bits, count - dp, dp)
        nearest = bits(best.closeness)
    raise _out_of_reach(gap, closeness, most * F4.depth, nearest)


def _out_of_reach(gap: float, closeness: float, depth: int, nearest: float) -> ProgramError:
    return ProgramError(
        f"no sign polynomial of this family reaches {-math.log2(closeness):g} bits from gap {gap:g} in {depth} levels",
        why=f"the nearest one proves {nearest:.1f} bits",
        hint="allow more depth, fewer bits or a larger gap",
    )


def make_chain(gap: float, degrees: tuple[int, ...], scale_bits: int) -> Chain:
    """The chain of odd minimax polynomials of these degrees, each for the proved image of the one before."""
    stages: list[Stage] = []
    tau = gap
    low = high = 1.0
    for degree in degrees:
        made, start = odd_minimax(tau, degree)
        coefficients = _normal(made.coefficients, start)
        slip = proof.rounding_error(coefficients, scale_bits) if len(stages) + 1 < len(degrees) else 0.0
        coefficients = tuple(c / (1.0 + slip) for c in coefficients)
        low, high = proof.image(coefficients, tau, 1.0)
        stages.append(Stage(coefficients))
        tau = low - slip
        if not tau > 0:
            return Chain(tuple(stages), 0.0, 1.0)
    return Chain(tuple(stages), low, high)


def odd_minimax(tau: float, degree: int) -> tuple[Minimax, float]:
    """The odd minimax polynomial for 1 on [tau, 1], and tau, which is reduced where the error would drown in rounding.

    On a narrow interval, the coefficients are not determined within floating point, and the polynomial may exceed 1
    between zero and tau.
    """
    while True:
        try:
            made = remez(_one, [(tau, 1.0)], degree, parity=1)
        except np.linalg.LinAlgError:
            made = None  # narrower than the distance between grid points
        if made is not None and made.level >= _LEAST_LEVEL:
            return made, tau
        tau = max(0.8 * tau, 1.0 - 2.0 * (1.0 - tau))


def _normal(coefficients: tuple[float, ...], tau: float) -> tuple[float, ...]:
    """The polynomial divided by its proved largest value on [0, 1], so that it maps [-1, 1] into itself."""
    most = proof.image(coefficients, tau, 1.0, small_ends=False)[1]
    if not _stays_below(coefficients, tau, most):
        most = max(most, proof.image(coefficients, 0.0, tau, small_ends=False)[1])
    return tuple(c / (most * (1 + 1e-15)) for c in coefficients)


def _stays_below(coefficients: tuple[float, ...], tau: float, most: float) -> bool:
    """Whether values on [0, tau] are proved to stay below `most`: by pieces that shrink towards tau, where they are
    closest to it.
    """
    start = 0.0
    for _ in range(_HALVINGS):
        if proof.image(coefficients, start, tau, _COARSE, small_ends=False)[1] <= most:
            return True
        middle = (start + tau) / 2
        if proof.image(coefficients, start, middle, _COARSE, small_ends=False)[1] > most:
            return False
        start = middle
    return False


def _one(x: Vector) -> Vector:
    return np.ones_like(x)


@lru_cache(maxsize=64)
def odd_multiplications(degree: int) -> int:
    """Non-scalar multiplications of an odd polynomial of that degree."""
    return plan_polynomial([(0.0 if i % 2 == 0 else 1.0 + 0.1 * i) for i in range(degree + 1)]).products


@lru_cache(maxsize=64)
def dense_multiplications(degree: int) -> int:
    """Non-scalar multiplications of a polynomial of that degree without zero coefficients."""
    return plan_polynomial([1.0 + 0.1 * i for i in range(degree + 1)]).products


@dataclass(frozen=True, slots=True)
class Candidate:
    """The degrees of a chain, their cost, and the measured distance from 1 of the scaled image of [gap, 1]."""

    degrees: tuple[int, ...]
    depth: int
    multiplications: int
    closeness: float


@lru_cache(maxsize=200_000)
def _closeness(tau_closeness: float, degree: int) -> float:
    """1 - (1 - e) / (1 + e) for the odd minimax polynomial on [1 - tau_closeness, 1] with error e."""
    level = odd_minimax(1.0 - tau_closeness, degree)[0].level
    return 2.0 * level / (1.0 + level)


def frontier(gap: float, closeness: float, max_depth: int) -> list[Candidate]:
    """Undominated chains by (depth, multiplications, closeness), in order of depth; none is longer than necessary.

    Dynamic programming: a chain's later stages depend only on the interval that the earlier ones leave, and a better
    interval never makes a later stage worse.
    """
    by_depth: dict[int, list[Candidate]] = {0: [Candidate((), 0, 0, 1.0 - gap)]}
    for depth in range(2, max_depth + 1):
        found: list[Candidate] = []
        for degree in DEGREES:
            before = by_depth.get(depth - depth_of_degree(degree), ())
            for chain in before:
                if chain.degrees and chain.closeness <= closeness:
                    continue
                made = _closeness(chain.closeness, degree)
                cost = chain.multiplications + odd_multiplications(degree)
                found.append(Candidate((*chain.degrees, degree), depth, cost, made))
        kept: list[Candidate] = []
        for one in sorted(found, key=lambda c: (c.multiplications, c.closeness)):
            if not kept or one.closeness < kept[-1].closeness * (1 - 1e-9):
                kept.append(one)
        by_depth[depth] = kept
    return [one for depth in sorted(by_depth) for one in by_depth[depth]]


def depth_bound(gap: float, closeness: float) -> int:
    """A safe upper bound on the depth of the search: degree-15 stages, with room."""
    return 8 + math.ceil(1.35 * (-math.log2(gap) + math.log2(max(2.0, -math.log2(closeness)))))


def _cheapest(gap: float, closeness: float, cost: str, scale_bits: int, max_depth: int | None) -> SignPlan:
    limit = depth_bound(gap, closeness) if max_depth is None else max_depth
    key = {"gap": gap, "closeness": closeness, "cost": cost, "scale_bits": scale_bits, "max_depth": limit}
    known = known_degrees(cache.load("sign", key))
    if known and sum(map(depth_of_degree, known)) <= limit:
        chain = make_chain(gap, known, scale_bits)
        if chain.closeness <= closeness:
            return plan_of_chain(chain, gap, "best", scale_bits)
    reach = min(limit, max(4, math.floor(-math.log2(gap))))
    while True:
        # The search measures closeness; a share is left for the proofs and for the rounding between stages.
        good = [c for c in frontier(gap, closeness * 0.99, reach) if c.degrees and c.closeness <= closeness * 0.99]
        if cost == "depth":
            good.sort(key=lambda c: (c.depth, c.multiplications))
        else:
            good.sort(key=lambda c: (c.multiplications, c.depth))
        if good and (cost == "depth" or reach >= limit):
            for candidate in good[:20]:
                chain = make_chain(gap, candidate.degrees, scale_bits)
                if chain.closeness <= closeness:
                    cache.store("sign", key, list(candidate.degrees))
                    return plan_of_chain(chain, gap, "best", scale_bits)
        if reach >= limit:
            break
        reach = min(limit, reach + 4)
    nearest = min((c.closeness for c in frontier(gap, closeness, limit)), default=1.0)
    raise _out_of_reach(gap, closeness, limit, bits(nearest))


def known_degrees(value: Any) -> tuple[int, ...] | None:
    """The degrees of a chain from the cache, or None."""
    degrees = cache.whole_numbers(value, DEGREES[-1], _MOST_STAGES)
    return degrees if degrees and all(d in DEGREES for d in degrees) else None


def _equal_degrees(gap: float, closeness: float, scale_bits: int, max_depth: int | None) -> SignPlan:
    """Stages of one degree: 7, 15 or 31, whichever takes the least depth."""
    limit = math.inf if max_depth is None else max_depth
    best: tuple[tuple[int, int], Chain] | None = None
    nearest = 0.0
    for degree in (7, 15, 31):
        left, count = 1.0 - gap, 0
        most = min(_MOST_STAGES, limit // depth_of_degree(degree))
        while count < most and (count == 0 or left > closeness * 0.99):
            left, count = _closeness(left, degree), count + 1
        nearest = max(nearest, bits(left))
        if left > closeness * 0.99 or count == 0:
            continue
        cost = (count * depth_of_degree(degree), count * odd_multiplications(degree))
        if best is None or cost < best[0]:
            chain = make_chain(gap, (degree,) * count, scale_bits)
            if chain.closeness <= closeness:
                best = (cost, chain)
    if best is None:
        raise _out_of_reach(gap, closeness, int(min(limit, 99)), nearest)
    return plan_of_chain(best[1], gap, "minimax", scale_bits)
