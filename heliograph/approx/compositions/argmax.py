"""One-hot argmax by comparing all pairs: Phoenix's two signs, and a cheaper second polynomial.

Phoenix (section 5): c - 1 rotations and signs are summed into scores; a score of c - 1 is separated from one of at most
c - 3 by a second sign on [-1, 1/(2c - 2)]. `best` keeps the score's scaling and replaces the second sign by minimax
polynomials for two intervals: a short one for the scores of a row's largest value, and a long one for the scores of the
others. Only the largest value needs to exceed the second by the gap; other classes may tie.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from heliograph.approx import cache
from heliograph.approx.compositions.sign import (
    DEFAULT_SCALE_BITS,
    Candidate,
    dense_multiplications,
    depth_bound,
    frontier,
    iterated_chain,
    iterated_image,
    known_degrees,
    make_chain,
    plan_of_chain,
    sign,
)
from heliograph.approx.fits.minimax import Minimax, remez
from heliograph.approx.proofs import proof
from heliograph.approx.result import ArgmaxPlan, Composite, SignPlan, Stage, bits
from heliograph.errors import ProgramError
from heliograph.ir.analysis.depth import depth_of_degree

FAMILIES = ("iterated", "best")
_MOST_ITERATED = 12
_MOST_TAIL = 12
_SHARES = (0.99, 0.96, 0.9, 0.75)
_SECOND_DEGREES = (3, 5, 7, 9, 11, 13, 15, 19, 23, 27, 31, 47, 63)


def argmax(
    classes: int, gap: float, count: int = 1, family: str = "best", *, scale_bits: int = DEFAULT_SCALE_BITS
) -> ArgmaxPlan:
    """The cheapest plan such that sums of `count` one-hot results, times a one-hot guess, round correctly.

    `gap`: the smallest difference of the largest and the second value, for values normalised to [0, 1].
    `family`: `iterated` has the fewest f4 and g4 (then the largest psi2), as published; `best` has the least depth,
    then the fewest multiplications.
    """
    if family not in FAMILIES:
        raise ProgramError(f"there is no family {family!r} of argmax", hint="one of " + ", ".join(FAMILIES))
    if classes < 2:
        raise ProgramError(f"argmax of {classes} class", hint="at least two")
    if count < 1:
        raise ProgramError(f"count {count} is not at least 1")
    if count > 2**36:
        raise ProgramError(f"count {count} is above 2^36", why="results would have to be proved beyond 37 bits")
    if classes == 2:
        return _two(gap, count, family, scale_bits)
    # Checks the gap and the scale.
    sign(
        max(gap, 0.5) if 0 < gap < 1 and gap > 4 * proof.unit(scale_bits) else gap,
        1.0,
        "iterated",
        scale_bits=scale_bits,
    )
    if family == "iterated":
        return _iterated(classes, gap, count, scale_bits)
    return _best(classes, gap, count, scale_bits)


def _two(gap: float, count: int, family: str, scale_bits: int) -> ArgmaxPlan:
    """Two classes: the sign of the difference is the answer."""
    first = sign(gap, -math.log2(_closeness_for(count)) + 1e-9, family, scale_bits=scale_bits)
    return _plan(2, gap, count, family, first, None, scale_bits)


def _plan(
    classes: int, gap: float, count: int, family: str, first: SignPlan, second: Composite | None, scale_bits: int
) -> ArgmaxPlan:
    last = second or first
    psi1 = first.closeness_bits
    closeness = last.error - last.rounding
    width = 2 * classes - 2
    return ArgmaxPlan(
        classes=classes,
        gap=gap,
        count=count,
        family=family,
        sign1=first,
        psi1=psi1,
        phi2=(1 - (classes - 1) * 2.0**-psi1) / width if second else gap,
        sign2=second,
        psi2=bits(closeness),
        max_count=_max_count(closeness),
        max_count_at_scale=_max_count(last.error),
        score_scale=1 / width,
        score_shift=-(classes - 2) / width,
    )


def _closeness_for(count: int) -> float:
    """The largest distance of the last sign from 1 for sums of `count` results.

    A result errs by half the sign's distance from 1, and is summed `count` times; Phoenix then multiplies the sum by a
    one-hot guess with the same error. Both together stay below a half.
    """
    return 0.5 / count


def _max_count(closeness: float) -> int:
    """The largest n with n * closeness / 2 < 1/2: each result is half the sign's distance from 0 or 1."""
    return max(0, math.ceil(1.0 / closeness) - 1)


def _iterated(classes: int, gap: float, count: int, scale_bits: int) -> ArgmaxPlan:
    """The plan with the fewest polynomials in total; among these, the one with the largest psi2."""
    target = _closeness_for(count)
    width = 2 * classes - 2
    for total in range(2, 2 * _MOST_ITERATED):
        found = []
        for first in range(1, total):
            for dp1 in range(first + 1):
                low, high = iterated_image("iterated", gap, first - dp1, dp1, scale_bits)
                closeness1 = max(1 - low, high - 1)
                phi2 = (1 - (classes - 1) * closeness1) / width
                if phi2 <= 4 * proof.unit(scale_bits):
                    continue
                for dp2 in range(total - first + 1):
                    dq2 = total - first - dp2
                    low, high = iterated_image("iterated", phi2, dq2, dp2, scale_bits)
                    closeness2 = max(1 - low, high - 1)
                    if closeness2 < target:
                        found.append((closeness2, first - dp1, dp1, dq2, dp2))
        if found:
            _, dq1, dp1, dq2, dp2 = min(found, key=lambda item: item[0])
            return _published(classes, gap, count, dq1, dp1, dq2, dp2, scale_bits)
    raise _out_of_reach(classes, gap, count, 4 * 2 * _MOST_ITERATED)


def _published(
    classes: int, gap: float, count: int, dq1: int, dp1: int, dq2: int, dp2: int, scale_bits: int
) -> ArgmaxPlan:
    first = _iterated_plan(gap, dq1, dp1, scale_bits)
    phi2 = (1 - (classes - 1) * (first.error - first.rounding)) / (2 * classes - 2)
    second = _iterated_plan(phi2, dq2, dp2, scale_bits)
    return _plan(classes, gap, count, "iterated", first, second, scale_bits)


def _iterated_plan(gap: float, dq: int, dp: int, scale_bits: int) -> SignPlan:
    return plan_of_chain(iterated_chain("iterated", gap, dq, dp, scale_bits), gap, "iterated", scale_bits, dq, dp)


def _out_of_reach(classes: int, gap: float, count: int, depth: int) -> ProgramError:
    return ProgramError(
        f"no argmax of {classes} classes with gap {gap:g} for sums of {count} within {depth} levels",
        hint="a larger gap or a smaller count",
    )


def _score_intervals(classes: int, closeness: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The intervals of the scaled scores of all other values and of the largest, if signs across the gap are within
    `closeness` of 1.

    The largest has c - 1 signs of at least 1 - closeness. Any other has one sign of at most -(1 - closeness), and the
    rest in [-1, 1] (ties and small differences among them give any value in between).
    """
    width = 2 * classes - 2
    shift = classes - 2
    others = ((-(classes - 1) - shift) / width, (classes - 3 + closeness - shift) / width)
    largest = (((classes - 1) * (1 - closeness) - shift) / width, (classes - 1 - shift) / width)
    return others, largest


def _best(classes: int, gap: float, count: int, scale_bits: int) -> ArgmaxPlan:
    """The cheapest plan of the search with proofs that hold."""
    key = {"classes": classes, "gap": gap, "closeness": _closeness_for(count), "scale_bits": scale_bits}
    known = _known(cache.load("argmax", key))
    if known is not None:
        made = _made(classes, gap, count, *known, scale_bits)
        if made is not None:
            return made
    # The search measures errors; the share that it leaves for the proofs grows until they hold.
    for share in _SHARES:
        candidate, degrees = _search(classes, gap, count, share)
        made = _made(classes, gap, count, candidate.degrees, degrees, scale_bits)
        if made is not None:
            cache.store("argmax", key, [list(candidate.degrees), list(degrees)])
            return made
    raise ProgramError(
        f"the argmax of {classes} classes with gap {gap:g} cannot be proved at a scale of 2^{scale_bits}",
        hint="a larger scale, or a larger gap",
    )


def _search(classes: int, gap: float, count: int, share: float) -> tuple[Candidate, tuple[int, ...]]:
    """The cheapest pair of a first sign on the frontier and the cheapest second polynomial for it."""
    need = 0.9 / (classes - 1)
    best: tuple[tuple[int, int], Candidate, tuple[int, ...]] | None = None
    limit = depth_bound(gap, need / 64)
    reach = min(limit, math.ceil(-math.log2(gap)) + 6)
    while True:
        for candidate in frontier(gap, need / 256, reach):
            if not candidate.degrees or candidate.closeness >= need:
                continue
            most = (limit, 10_000) if best is None else best[0]
            room = (most[0] - candidate.depth, most[1] - candidate.multiplications)
            chosen = _second_degrees(classes, candidate.closeness / share, _closeness_for(count) * share, room)
            if chosen is not None:
                degrees, depth, multiplications = chosen
                best = ((candidate.depth + depth, candidate.multiplications + multiplications), candidate, degrees)
        if best is not None:
            return best[1], best[2]
        if reach >= limit:
            raise _out_of_reach(classes, gap, count, limit)
        reach = min(limit, reach + 3)


def _known(value: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The degrees of both polynomials from the cache, or None."""
    if not isinstance(value, list) or len(value) != 2:
        return None
    first, second = known_degrees(value[0]), cache.whole_numbers(value[1], _SECOND_DEGREES[-1], _MOST_TAIL)
    return (first, second) if first and second and min(second) > 0 else None


def _made(
    classes: int, gap: float, count: int, first_degrees: tuple[int, ...], degrees: tuple[int, ...], scale_bits: int
) -> ArgmaxPlan | None:
    """The plan of these degrees with its proofs; None if they do not hold for `count`."""
    # Each difference carries the errors from scaling its two operands.
    least = gap - 2 * proof.unit(scale_bits)
    chain = make_chain(least, first_degrees, scale_bits)
    if not chain.closeness < 1.0 / (classes - 1):
        return None
    first = plan_of_chain(chain, least, "best", scale_bits)
    second = _second(classes, first, degrees, scale_bits)
    if second is None or not second.error - second.rounding <= _closeness_for(count):
        return None
    return _plan(classes, gap, count, "best", first, second, scale_bits)


def _second_degrees(
    classes: int, closeness1: float, closeness: float, most: tuple[int, int]
) -> tuple[tuple[int, ...], int, int] | None:
    """Degrees, depth and multiplications of the cheapest second polynomial; None if none costs less than `most`."""
    best: tuple[tuple[int, int], tuple[int, ...]] | None = None
    for degree in _SECOND_DEGREES:
        depth, cost = depth_of_degree(degree), dense_multiplications(degree)
        if (depth, cost) >= most:
            continue
        error = _two_intervals(classes, closeness1, degree).level
        left = 2 * error / (1 + error)
        if error <= closeness:
            best, most = ((depth, cost), (degree,)), (depth, cost)
            continue
        room = min(most[0] - depth, _MOST_TAIL)
        for tail in frontier(1 - left, closeness, room) if left < 1 - 1e-6 and room >= 2 else ():
            total = (depth + tail.depth, cost + tail.multiplications)
            if tail.closeness <= closeness and total < most:
                best, most = (total, (degree, *tail.degrees)), total
    return None if best is None else (best[1], *best[0])


@lru_cache(maxsize=4096)
def _two_intervals(classes: int, closeness1: float, degree: int) -> Minimax:
    """The minimax polynomial for -1 on the others' scores and 1 on the largest's; [-1, 1] spans both intervals."""
    others, largest = _score_intervals(classes, closeness1)
    low, high = others[0], largest[1]
    t = [tuple(_argument(x, low, high) for x in pair) for pair in (others, largest)]
    cut = (t[0][1] + t[1][0]) / 2
    return remez(lambda x: np.where(x < cut, -1.0, 1.0), [(t[0][0], t[0][1]), (t[1][0], t[1][1])], degree)


def _argument(x: float, low: float, high: float) -> float:
    return min(1.0, max(-1.0, (2 * x - low - high) / (high - low)))


def _second(classes: int, first: SignPlan, degrees: tuple[int, ...], scale_bits: int) -> Composite | None:
    """The second polynomial with its proof; `degrees` are for the polynomial on two intervals and the odd ones after
    it.

    The scores are widened by the rounding of the first sign and of their own sum. None if the proof does not hold.
    """
    slip = first.rounding + proof.unit(scale_bits)
    others, largest = _score_intervals(classes, first.error - first.rounding)
    others, largest = (others[0] - slip, others[1] + slip), (largest[0] - slip, largest[1] + slip)
    low, high = others[0], largest[1]
    near, far = ((_argument(a, low, high), _argument(b, low, high)) for a, b in (largest, others))
    cut = (far[1] + near[0]) / 2
    made = remez(lambda x: np.where(x < cut, -1.0, 1.0), [far, near], degrees[0]).coefficients
    if len(degrees) == 1:
        return _proved(Composite((Stage(made, low, high),), (others, largest), 0.0, 0.0, scale_bits), far, near)
    # The next stage's argument must stay in [-1, 1], also between the two intervals.
    step = proof.rounding_error(made, scale_bits)
    bottom, top = proof.image(made, small_ends=False)
    most = max(top, -bottom) * (1 + 1e-15)
    made = tuple(c / (most * (1 + step)) for c in made)
    tau = min(proof.image(made, *near)[0], -proof.image(made, *far)[1]) - step
    if not tau > 0:
        return None
    tail = make_chain(tau, degrees[1:], scale_bits)
    rounding = proof.rounding_error(tail.stages[-1].coefficients, scale_bits)
    stages = (Stage(made, low, high), *tail.stages)
    return Composite(stages, (others, largest), tail.closeness + rounding, rounding, scale_bits)


def _proved(plan: Composite, far: tuple[float, float], near: tuple[float, float]) -> Composite:
    """A single stage with the proved distance of its values from -1 on `far` and from 1 on `near`."""
    coefficients = plan.stages[0].coefficients
    low, high = proof.image(coefficients, *near)
    bottom, top = proof.image(coefficients, *far)
    closeness = max(1 - low, high - 1, top + 1, -1 - bottom)
    rounding = proof.rounding_error(coefficients, plan.scale_bits)
    return replace(plan, error=closeness + rounding, rounding=rounding)
