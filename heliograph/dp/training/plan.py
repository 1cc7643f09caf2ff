"""From epsilon to noise and from noise to epsilon: the budget of a run, made before its data are touched.

DP-SGD, and DPIS with a planned norm share, have mechanisms that are fixed beforehand: the numerical bracket of the plan
holds. DPIS with released norm sums chooses probabilities and noise from them: a Renyi filter is fixed, at the
order that suits the public worst case (all norms at the bound), and its budget is the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.dp.accounting import Bracket, Tolerance, epsilon_at
from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.accounting.rdp import conversion, epsilon_bound, total_log_moment
from heliograph.dp.calibrate import smallest_noise
from heliograph.dp.composition import Composition
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import DIRECTIONS, Gaussian, Mechanism, SampledGaussian
from heliograph.dp.samplers import AllocationSampler, Sampler, epoch_steps
from heliograph.dp.training.budget import PlannedBudget, restored
from heliograph.dp.training.settings import Settings
from heliograph.errors import PlanningError


@dataclass(frozen=True)
class Plan:
    """A run's budget, its steps per epoch, and the fixed part of their noise.

    `sigma` is noise standard deviation over C (None: chosen epoch by epoch). If everything was fixed beforehand,
    `mechanisms` has the mechanism of each epoch's steps, and `bracket` is the plan's.
    """

    budget: PlannedBudget | RenyiFilter
    steps: int
    sigma: float | None
    mechanisms: tuple[Mechanism, ...] = ()
    bracket: Bracket | None = None

    def to_json(self) -> dict[str, Any]:
        """The plan with its budget's charges, for a checkpoint."""
        mechanisms = [each.text() for each in self.mechanisms]
        return {"budget": self.budget.to_json(), "steps": self.steps, "sigma": self.sigma, "mechanisms": mechanisms}

    @classmethod
    def from_json(cls, state: dict[str, Any], settings: Settings, delta: float) -> Plan:
        """The plan of a checkpoint; `delta` is for the releases under it."""
        budget = restored(state["budget"])
        mechanisms = tuple(parse(text).items[0][0] for text in state["mechanisms"])
        bracket = _bracket(budget.plan, settings, delta) if isinstance(budget, PlannedBudget) else None
        return cls(budget, state["steps"], state["sigma"], mechanisms, bracket)


def _bracket(plan: Composition, settings: Settings, delta: float) -> Bracket:
    """The bracket of a plan, as narrow as in calibration, so that its upper end does not exceed the target."""
    target = settings.epsilon
    width = Tolerance() if target is None else Tolerance(absolute=min(1e-3, 1e-4 * target), relative=1e-5)
    return epsilon_at(plan, delta, tolerance=width, neighboring=settings.neighboring)


def make_plan(settings: Settings, size: float, epsilon: float | None, delta: float) -> Plan:
    """The plan of a run: `size` is N or N~; epsilon (None: noise was given) and delta are for the releases from here
    on.

    Raises PlanningError if the target cannot be met.
    """
    if settings.sampler is not None:
        return _sampled(settings, settings.sampler, epsilon, delta, size)
    steps = epoch_steps(size, settings.batch_size)
    total = steps * settings.epochs
    p = min(settings.batch_size / size, 1.0)
    if settings.bands is not None:
        if settings.bands > total:
            raise PlanningError(f"{settings.bands} bands for {total} steps", where="bands", hint="use fewer bands")
        # A record's group has its turn once every `bands` steps; the plan counts a record's turns.
        cycles, turn = -(-total // settings.bands), min(p * settings.bands, 1.0)
        multiplier, bracket = _noise(settings, epsilon, delta, lambda sigma: SampledGaussian(turn, sigma) * cycles)
        mechanism = SampledGaussian(turn, multiplier)
        return Plan(PlannedBudget(mechanism * cycles), steps, multiplier, (mechanism,) * settings.epochs, bracket)
    if settings.method == "dp_sgd":
        return _fixed(settings, epsilon, delta, p, steps, (1.0,) * settings.epochs, Composition())
    norms = Gaussian(settings.dpis.norm_noise * size)
    adapting = settings.epochs - 1 if settings.dpis.adapt_clipping else 0
    shares = settings.dpis.planned_shares(settings.epochs)
    if shares is not None:
        if settings.batch_size >= min(shares) * size:
            raise PlanningError(
                f"planned_norm_share = {min(shares):g} times N is not above the batch size {settings.batch_size:g}",
                where="planned_norm_share",
                why="probabilities would saturate, and vectors pass the analysed norm",
                hint="use a larger share or a smaller batch_size",
            )
        return _fixed(settings, epsilon, delta, p, steps, shares, norms * adapting)
    rest = norms * (settings.epochs + adapting)
    if epsilon is None:
        assert settings.noise_multiplier is not None
        worst = SampledGaussian(p, settings.noise_multiplier) * total + rest
        epsilon = max(epsilon_bound(worst.simplified(), direction, delta)[0] for direction in DIRECTIONS)
        # Room for the rounding of that many charges.
        budget = RenyiFilter.for_plan(worst, epsilon * (1 + 1e-6) + 1e-6, delta)
        return Plan(budget, steps, settings.noise_multiplier)
    order = _order(lambda sigma: SampledGaussian(p, sigma) * total + rest, epsilon, delta)
    return Plan(RenyiFilter(epsilon, delta, order), steps, None)


def _sampled(settings: Settings, sampler: Sampler, epsilon: float | None, delta: float, size: float) -> Plan:
    """A plan of DP-SGD with a sampler, which gives the accounting of its epochs."""

    def plan(multiplier: float) -> Composition:
        return sampler.plan(size, multiplier).composition(settings.epochs)

    limits = (0.3, 1e4) if isinstance(sampler, AllocationSampler) else (1e-2, 1e6)
    multiplier, bracket = _noise(settings, epsilon, delta, plan, limits)
    epoch = sampler.plan(size, multiplier)
    return Plan(PlannedBudget(plan(multiplier)), epoch.steps, multiplier, (epoch.mechanism,) * settings.epochs, bracket)


def _noise(
    settings: Settings,
    epsilon: float | None,
    delta: float,
    plan: Callable[[float], Composition],
    limits: tuple[float, float] = (1e-3, 1e6),
    largest: float = 1.0,
) -> tuple[float, Bracket]:
    """The multiplier of a plan, the given one over `largest` or the smallest that meets the target, and the bracket."""
    if epsilon is None:
        assert settings.noise_multiplier is not None
        multiplier = settings.noise_multiplier / largest
        return multiplier, _bracket(plan(multiplier), settings, delta)
    found = smallest_noise(epsilon, delta, plan, limits, neighboring=settings.neighboring)
    return found.value, found.bracket


def _order(plan: Callable[[float], Composition], epsilon: float, delta: float) -> float:
    """The order, of a grid, at which the least noise meets the target. Any order fixed now gives a guarantee."""
    thetas = np.geomspace(0.1, 1e4, 56)

    def best(sigma: float) -> tuple[float, float]:
        composition = plan(sigma).simplified()
        # For a sampled Gaussian, direction remove has the larger moment, or nearly.
        return min((total_log_moment(composition, t, "remove") / t + conversion(t, delta), t) for t in thetas.tolist())

    return 1 + best(least_noise(lambda sigma: best(sigma)[0] <= epsilon, 0.02))[1]


def least_noise(fits: Callable[[float], bool], tolerance: float = 1e-6) -> float:
    """The least sigma from 1e-2 on, to the tolerance (relative) from above, that fits; more noise fits as well.

    Raises PlanningError if the largest does not.
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
    settings: Settings,
    epsilon: float | None,
    delta: float,
    p: float,
    steps: int,
    shares: tuple[float, ...],
    rest: Composition,
) -> Plan:
    """A plan whose steps have probability p / share and multiplier sigma / share, by epoch."""
    largest = max(shares)

    def mechanisms(least: float) -> tuple[SampledGaussian, ...]:
        """The steps' mechanisms for the smallest of their multipliers, which belongs to the largest share."""
        return tuple(SampledGaussian(p / share, least * (largest / share)) for share in shares)

    def plan(least: float) -> Composition:
        return Composition(tuple((each, steps) for each in mechanisms(least))) + rest

    least, bracket = _noise(settings, epsilon, delta, plan, largest=largest)
    return Plan(PlannedBudget(plan(least)), steps, least * largest, mechanisms(least), bracket)
