"""Signs and argmax: published figures, proofs against sampling, costs, refusals."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from heliograph.approx.compositions.argmax import argmax
from heliograph.approx.compositions.sign import sign
from heliograph.approx.proofs import proof
from heliograph.approx.result import ArgmaxPlan, SignPlan, Stage
from heliograph.errors import ProgramError


def composed(stages: tuple[Stage, ...], x: np.ndarray) -> list[mpmath.mpf]:
    """The stages on [-1, 1] in 50 digits."""
    made = []
    with mpmath.workdps(50):
        for at in x:
            value = mpmath.mpf(float(at))
            for stage in stages:
                t = (2 * value - stage.low - stage.high) / (mpmath.mpf(stage.high) - stage.low)
                upper = lower = mpmath.mpf(0)
                for c in stage.coefficients[:0:-1]:
                    upper, lower = mpmath.mpf(c) + 2 * t * upper - lower, upper
                value = mpmath.mpf(stage.coefficients[0]) + t * upper - lower
            made.append(value)
    return made


@pytest.mark.parametrize("family", ["iterated", "hetal", "minimax", "best"])
@pytest.mark.parametrize(("gap", "bits"), [(1e-3, 8.0), (0.05, 12.0), (0.9, 2.0)])
def test_closeness_is_proved_and_near(family: str, gap: float, bits: float) -> None:
    plan = sign(gap, bits, family)
    assert plan.closeness_bits >= bits
    points = np.unique(np.concatenate(([gap, 1.0], np.geomspace(gap, 1.0, 1200), np.linspace(gap, 1.0, 1200))))
    values = composed(plan.stages, points)
    worst = max(abs(1 - v) for v in values)
    closeness = 2.0**-plan.closeness_bits
    assert worst <= closeness
    if closeness > 2.0**-40:  # beyond, what rounding adds between stages shows
        assert closeness <= 1.03 * float(worst)
    # Everywhere on [-1, 1] the next argument stays in range, inside the gap too.
    x = np.linspace(-1, 1, 20001)
    for stage in plan.stages:
        x = stage(x)
        assert np.abs(x).max() <= 1 + 1e-9
    assert plan.depth == sum(max(1, math.ceil(math.log2(d + 1))) for d in plan.degrees)


@pytest.mark.parametrize(("gap", "bits", "scale_bits"), [(0.3, 30.0, 60), (2.5e-3, 19.1, 40), (0.331, 14.8, 50)])
@pytest.mark.parametrize("cost", ["depth", "multiplications"])
def test_many_bits(gap: float, bits: float, scale_bits: int, cost: str) -> None:
    """Intervals so near to 1 that coefficients drown in rounding are widened, and the proofs still hold."""
    plan = sign(gap, bits, "best", cost=cost, scale_bits=scale_bits)
    assert plan.closeness_bits >= bits
    x = np.geomspace(gap, 1.0, 2001)
    assert max(abs(1 - v) for v in composed(plan.stages, x)) <= 2.0**-plan.closeness_bits


def test_best_is_never_dearer() -> None:
    for gap, bits in ((5e-3, 8.0), (0.02, 10.0)):
        best = sign(gap, bits, "best")
        fewest = sign(gap, bits, "best", cost="multiplications", max_depth=best.depth + 8)
        for family in ("iterated", "hetal", "minimax"):
            other = sign(gap, bits, family)
            assert best.depth <= other.depth
            assert fewest.multiplications <= other.multiplications
        assert best.depth <= fewest.depth
        assert fewest.multiplications <= best.multiplications


PUBLISHED = [
    # classes, gap, (dq1, dp1, dq2, dp2), depth
    (10, 4e-5, (6, 1, 2, 2), 45),
    (10, 1e-3, (4, 1, 2, 2), 37),
    (100, 4e-5, (6, 1, 3, 2), 49),
]


@pytest.mark.parametrize(("classes", "gap", "counts", "depth"), PUBLISHED)
def test_published_parameters(classes: int, gap: float, counts: tuple[int, ...], depth: int) -> None:
    plan = argmax(classes, gap, 128, "iterated")
    second = plan.sign2
    assert isinstance(second, SignPlan)
    assert (plan.sign1.dq, plan.sign1.dp, second.dq, second.dp) == counts
    assert plan.depth == depth
    if classes == 10:
        assert plan.psi1 == pytest.approx(7.62, abs=0.01)
        assert plan.phi2 == pytest.approx(0.053, abs=1e-4)
        assert plan.max_count == pytest.approx(3.77e10, rel=0.01)


def test_two_classes_need_one_sign() -> None:
    """Phoenix on Adult: n = 1024, no second sign."""
    plan = argmax(2, 4e-5, 1024, "iterated")
    assert plan.sign2 is None
    assert (plan.sign1.dq, plan.sign1.dp) == (6, 2)
    assert plan.max_count >= 1024
    assert argmax(2, 1e-3, 64, "best").depth < argmax(2, 1e-3, 64, "iterated").depth


@pytest.mark.parametrize(
    ("classes", "gap", "count", "most"),
    [(10, 4e-5, 128, 23), (10, 1e-3, 128, 18), (3, 0.01, 1, 11), (40, 1e-2, 16, 17)],
)
def test_best_argmax(classes: int, gap: float, count: int, most: int) -> None:
    plan = argmax(classes, gap, count, "best")
    assert plan.depth <= most
    assert plan.depth < argmax(classes, gap, count, "iterated").depth
    assert plan.phi2 > 0
    assert plan.max_count_at_scale >= count
    rows = hard_rows(classes, gap, 4000)
    one_hot = np.eye(classes)[rows.argmax(axis=1)]
    error = np.abs(plan(rows) - one_hot).max()
    closeness = 2.0**-plan.psi2 / 2
    assert error <= closeness
    assert error >= 0.5 * closeness
    assert np.abs(folded(plan, rows) - plan(rows)).max() < 1e-9


def hard_rows(classes: int, gap: float, count: int) -> np.ndarray:
    """Rows whose largest value is the gap or a little more above ties and crowds of others."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 1 - gap, (count, classes)) ** rng.uniform(0.2, 30, (count, 1))
    crowd = rng.random((count, classes)) < rng.random((count, 1))
    top = rows.max(axis=1, keepdims=True)
    rows = np.where(crowd, top, rows)
    # values far below all others, too
    rows[: count // 4] *= rng.random((count // 4, classes)) < 0.5
    place = rng.integers(0, classes, count)
    rows[np.arange(count), place] = np.minimum(1.0, rows.max(axis=1) + gap * rng.choice([1.0, 1.0, 1.3, 10.0], count))
    others = rows.copy()
    others[np.arange(count), place] = -1.0
    keep = rows[np.arange(count), place] - others.max(axis=1) >= gap
    return np.asarray(rows[keep])


def folded(plan: ArgmaxPlan, rows: np.ndarray) -> np.ndarray:
    """By the folded stages alone: what a lowering evaluates."""
    total = np.zeros_like(rows)
    for offset in range(1, plan.classes):
        x = rows - np.roll(rows, -offset, axis=1)
        for stage in plan.folded1():
            x = stage(x)
        total += x
    x = total + plan.offset2
    for stage in plan.folded2():
        x = stage(x)
    return x


def test_rounding_at_a_small_scale_is_in_the_proof() -> None:
    """Every stage off by its rounding, in the worst direction tried, stays within `error`."""
    plan = sign(0.02, 9.0, "best", scale_bits=36)
    rng = np.random.default_rng(0)
    x = np.geomspace(0.02, 1.0, 3000)
    for stage in plan.stages:
        slip = proof.rounding_error(stage.coefficients, 36)
        x = stage(x) + slip * rng.choice([-1.0, 1.0], x.shape)
    assert np.abs(x - 1).max() <= plan.error
    assert plan.error > 2.0**-plan.closeness_bits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0.0, 8.0), "gap 0 is not between"),
        ((-1.0, 8.0), "not between"),
        ((math.nan, 8.0), "not between"),
        ((1e-12, 8.0), "below the precision of a scale"),
        ((0.1, 60.0), "precision_bits"),
        ((0.1, 8.0, "remez"), "no family"),
    ],
)
def test_signs_refuse(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        sign(*arguments)  # type: ignore[arg-type]


def test_too_little_depth_names_the_nearest() -> None:
    with pytest.raises(ProgramError, match="nearest one proves"):
        sign(1e-3, 20.0, "best", max_depth=9)
    with pytest.raises(ProgramError, match="two"):
        argmax(1, 0.1)
    with pytest.raises(ProgramError, match="gap"):
        argmax(10, 0.0)
