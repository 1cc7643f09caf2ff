"""From epsilon to noise and from noise to epsilon: the budget of a run, made before its data are touched.

DP-SGD, and DPIS with a planned norm share, have mechanisms that are fixed beforehand: the numerical bracket of the plan
holds. DPIS that releases its norm sums chooses probabilities and noise by what it saw: a Renyi filter is fixed, at the
order that suits the public worst case (all norms at the bound), and its budget is the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heliograph.dp.accounting import Bracket
from heliograph.dp.accounting import epsilon as bracket_of
from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.accounting.rdp import conversion, epsilon_bound, total_log_moment
from heliograph.dp.calibrate import noise_multiplier
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import DIRECTIONS, Gaussian, SampledGaussian
from heliograph.dp.training.budget import PlannedBudget
from heliograph.dp.training.settings import Settings
from heliograph.errors import PlanningError


@dataclass(frozen=True)
class Plan:
    """A run's budget, its steps an epoch, and what was fixed of their noise.

    `sigma` is noise standard deviation over C (None: chosen epoch by epoch); `step` the mechanism of every step and
    `bracket` the plan's, where all was fixed beforehand.
    """

    budget: PlannedBudget | RenyiFilter
    steps: int
    sigma: float | None
    step: SampledGaussian | None = None
    bracket: Bracket | None = None


def steps_per_epoch(size: float, batch_size: float) -> int:
    """The steps of an epoch: max(1, floor(N / b)), N public or released."""
    return max(1, int(size // batch_size))


def make_plan(settings: Settings, size: float, epsilon: float | None, delta: float) -> Plan:
    """The plan of a run: `size` is N or N~; epsilon (None: noise was given) and delta are for what is released from here.

    Raises PlanningError where the target cannot be met.
    """
    steps = steps_per_epoch(size, settings.batch_size)
    total = steps * settings.epochs
    p = min(settings.batch_size / size, 1.0)
    if settings.method == "dp_sgd":
        return _fixed(settings.noise_multiplier, epsilon, delta, p, total, Composition(), steps, 1.0)
    options = settings.dpis
    norms = Gaussian(options.norm_noise * size)
    adapting = settings.epochs - 1 if options.adapt_clipping else 0
    if options.planned_norm_share is not None:
        share = options.planned_norm_share
        if settings.batch_size >= share * size:
            raise PlanningError(
                f"planned_norm_share = {share:g} times N is not above the batch size {settings.batch_size:g}",
                where="planned_norm_share",
                why="probabilities would saturate, and vectors pass the analysed norm",
                hint="use a larger share or a smaller batch_size",
            )
        rest = norms * adapting
        return _fixed(settings.noise_multiplier, epsilon, delta, p / share, total, rest, steps, share)
    rest = norms * (settings.epochs + adapting)
    if epsilon is None:
        assert settings.noise_multiplier is not None
        worst = SampledGaussian(p, settings.noise_multiplier) * total + rest
        epsilon = max(epsilon_bound(worst.simplified(), direction, delta)[0] for direction in DIRECTIONS)
        # Room for the rounding of as many charges.
        budget = RenyiFilter.for_plan(worst, epsilon * (1 + 1e-6) + 1e-6, delta)
        return Plan(budget, steps, settings.noise_multiplier)
    order = _order(lambda sigma: SampledGaussian(p, sigma) * total + rest, epsilon, delta)
    return Plan(RenyiFilter(epsilon, delta, order), steps, None)


def _order(plan: Callable[[float], Composition], epsilon: float, delta: float) -> float:
    """The order, of a grid, at which the least noise meets the target. Any order that is fixed now gives a guarantee."""
    thetas = np.geomspace(0.1, 1e4, 56)

    def best(sigma: float) -> tuple[float, float]:
        composition = plan(sigma).simplified()
        # Direction remove is the larger one of a sampled Gaussian, or nearly.
        return min((total_log_moment(composition, t, "remove") / t + conversion(t, delta), t) for t in thetas.tolist())

    return 1 + best(least_noise(lambda sigma: best(sigma)[0] <= epsilon, 0.02))[1]


def least_noise(fits: Callable[[float], bool], tolerance: float = 1e-6) -> float:
    """The least sigma from 1e-2 on, to the tolerance (relative) from above, that fits; more noise fits as well.

    Raises PlanningError where the largest does not.
    """
    low = high = 1.0
    while not fits(high):
        if high > 1e6:
            raise PlanningError(
                "no noise on the gradients is enough",
                where="noise",
                why="the other releases (norm sums) alone use the privacy budget that is left",
                hint="use a larger norm_noise, fewer epochs or a larger epsilon",
            )
        low, high = high, high * 2
    while low == high or fits(low):
        if low < 1e-2:
            return low
        low, high = low / 2, low
    left, right = math.log(low), math.log(high)
    while right - left > tolerance:
        middle = (left + right) / 2
        if fits(math.exp(middle)):
            right = middle
        else:
            left = middle
    return math.exp(right)


def _fixed(
    sigma: float | None,
    epsilon: float | None,
    delta: float,
    p: float,
    total: int,
    rest: Composition,
    steps: int,
    share: float,
) -> Plan:
    """A plan whose steps all have probability p and multiplier sigma / share."""
    if sigma is None:
        assert epsilon is not None
        besides = rest if rest.items else None
        sigma = share * noise_multiplier(epsilon, delta, p=p, steps=total, besides=besides).value
    step = SampledGaussian(p, sigma / share)
    plan = step * total + rest
    return Plan(PlannedBudget(plan), steps, sigma, step, bracket_of(plan, delta))
