"""The certified bracket: epsilon (or delta) of a composition between two bounds, as narrow as requested (P1 to P3).

Each mechanism's loss is discretized from above and from below (`discretize`), composed by one tilted FFT (`convolve`),
and delta is read off both. Both are of second order: the width is about `steps * mesh^2 * (1 + theta) / 8` with theta
the saddle. The mesh is refined until the width is within the tolerance; the width measured on one mesh predicts the
next. Where no mesh gives that, the composed law is taken for a normal one, whose error is bounded (`normal`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize_scalar

from heliograph.dp.accounting import convolve
from heliograph.dp.accounting.convolve import Composed, Terms, TooLongError
from heliograph.dp.accounting.discretize import (
    Lattice,
    Mesh,
    TooFineError,
    least_step,
    merging_offset,
    offset_for,
    optimistic,
    pessimistic,
)
from heliograph.dp.accounting.normal import Normal, normal, tilt_for_delta, tilt_for_epsilon
from heliograph.dp.accounting.rdp import epsilon_bound
from heliograph.dp.accounting.result import Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Direction
from heliograph.dp.pairs import Pair, gaussian_mu

PairTerms = Sequence[tuple[Pair, int]]

_ROUNDS = 14
_FIRST_LENGTH = 1 << 20
"""Nodes that are enough to see how wide a law is, and how wide its bracket."""

_SEARCHED = 16
"""Of no more kinds than these the best offsets are searched for."""
_LARGEST_LOSS = 4.0
"""-log of the largest share of delta that tails may lose."""
_ROUGH = 1 << 15
"""Nodes that are enough to find a tilt."""
_CANDIDATES = 1 << 18
"""Steps that are tried for one on which all atoms lie; their phases cover all that finer ones would."""
_WIDEN = 1e-12
"""Relative widening of every bracket, for the few roundings that are not bounded one by one."""


@dataclass(frozen=True)
class Interval:
    """Two bounds on a number."""

    lower: float
    upper: float

    @property
    def width(self) -> float:
        """upper - lower; 0 where both are infinite."""
        return 0.0 if self.lower == self.upper else self.upper - self.lower


def infinite_bounds(pairs: PairTerms) -> Interval:
    """Bounds on the probability that some loss of the composition is infinite, without unknown mass."""

    def within(masses: list[tuple[float, int]]) -> float:
        return -math.expm1(sum(k * (math.log1p(-mass) if mass < 1 else -math.inf) for mass, k in masses))

    lower = within([(pair.infinite_below, count) for pair, count in pairs])
    upper = within([(pair.infinite_above - pair.unsure, count) for pair, count in pairs])
    return Interval(max(0.0, lower * (1 - _WIDEN)), min(max(0.0, upper) * (1 + _WIDEN), 1.0))


def lattice_gap(pair: Pair) -> float:
    """The spacing of the lattice of a pair's atoms; 0 if it has fewer than two atoms or they are on no lattice."""
    loss = pair.atoms.loss
    if loss.size < 2:
        return 0.0
    gaps = np.diff(loss)
    gap = float(gaps.min())
    if gap < 64 * least_step(float(np.abs(loss).max())):
        # A lattice as fine as round-off cannot carry nodes.
        return 0.0
    ratios = gaps / gap
    return gap if np.all(np.abs(ratios - np.round(ratios)) <= 1e-9 * ratios) and gap > 0 else 0.0


def _aligned(pairs: PairTerms, step: float, goal: float, *, leading: bool = False) -> float:
    """A step of at most about the wanted one that puts the atoms of the pairs on nodes, as nearly as possible.

    If only those of the `leading` pair are asked for, it is the coarsest such step.
    Atoms that lie closer together than the step force no finer one than needed to round them away at a tenth of the
    goal: down by at most their span (the first is put on a node), or by a step, in each of their runs.
    """
    gaps = [(lattice_gap(pair), count, float(pair.atoms.a.max())) for pair, count in pairs if pair.atoms.loss.size > 1]
    gaps = [entry for entry in gaps if entry[0] > 0]
    close = 0.0
    for pair, count in pairs:
        if pair.atoms.loss.size > 1 and 0 < lattice_gap(pair) < step:
            span, mass = float(pair.atoms.loss[-1] - pair.atoms.loss[0]), float(pair.atoms.a.max())
            close += count * mass if count * mass * span > 0.1 * goal / len(pairs) else 0.0
    if close:
        step = min(step, max(0.1 * goal / close, min(gap for gap, _, _ in gaps)))
    gaps = [entry for entry in gaps if entry[0] >= step]
    if not gaps:
        return step
    lead, _, _ = max(gaps, key=lambda entry: entry[0] * entry[1] * entry[2])
    fewest = max(math.ceil(lead / step), 1)
    if leading or len(gaps) == 1:
        return lead / fewest
    candidates = lead / np.arange(fewest, min(2 * fewest + 64, fewest + _CANDIDATES))
    # Atoms that miss a node are rounded down by the miss, in each of their steps.
    miss = np.zeros_like(candidates)
    for gap, count, mass in gaps:
        if gap != lead:
            miss += count * mass * candidates * ((gap / candidates + 1e-7) % 1.0)
    # A finer step has to be better by more than round-off.
    best = 0
    while (better := miss[best + 1 :] < 0.98 * miss[best]).any():
        best += 1 + int(np.argmax(better))
    return float(candidates[best])


def _log_tail(pairs: PairTerms, count: int, log_lost: float) -> float:
    """log of a tail of one of `count` losses, where all tails of the composition together have e^log_lost."""
    return log_lost - math.log(count * len(pairs))


def _lattices(pairs: PairTerms, meshes: Sequence[Mesh], log_lost: float, goal: float) -> tuple[Terms, Terms]:
    above, below = [], []
    for (pair, count), mesh in zip(pairs, meshes, strict=True):
        log_tail = _log_tail(pairs, count, log_lost)
        above.append((pessimistic(pair, mesh, offset_for(pair, mesh.step), log_tail), count))
        spare = goal / (100 * count * len(pairs))
        # Finding the best offset takes about a dozen discretizations, which is too slow for many kinds of mechanism.
        offset = merging_offset(pair, mesh.step) if len(pairs) <= _SEARCHED else offset_for(pair, mesh.step)
        below.append((optimistic(pair, mesh, offset, log_tail, spare), count))
    return above, below


def _meshes(terms: Terms, law: Composed, epsilon: float, step: float, goal: float) -> list[Mesh]:
    """Meshes of one step for the mechanisms, with nodes left out where that widens the bracket by little of the goal.

    Mass counts as the sum lies near epsilon: the tilted mass at a loss l times the composed law's at epsilon - l. (Where
    delta comes from one large loss among many steps, the tilted mass alone would see only the bulk.)

    A gap d that holds mass w widens it by about count * w * d^2 * (1 + theta) / 8. For a given sum of these the
    fewest nodes have d as the density to the power -1/3.
    """
    theta = law.theta
    # No gap may be wider than the scale on which the law of the sum is smooth: the tilt's scale, and its bulk's.
    bulk_scale = law.step / (2.5 * float(law.values.max()))
    widest = max(min(0.1 / (1 + theta), 0.25 * bulk_scale), step)
    meshes = []
    for lattice, count in terms:
        losses = lattice.losses()
        exponent = theta * losses
        weights = lattice.mass * np.exp(exponent - float(exponent.max())) * law.likelihood(losses, epsilon)
        total = float(weights.sum())
        if losses.size < 16 or not total > 0 or (losses[-1] - losses[0]) < 4000 * step:
            meshes.append(Mesh(step))
            continue
        gaps = np.diff(losses)
        density = np.maximum(weights[1:], weights[:-1]) / total / gaps
        # Mass that the last mesh smeared over a gap may be at its end, so neighbours count too.
        wide = density.copy()
        wide[1:] = np.maximum(wide[1:], density[:-1])
        wide[:-1] = np.maximum(wide[:-1], density[1:])
        wide = np.maximum(wide, 1e-30)
        budget = 0.03 * goal / len(terms) * 8 / ((1 + theta) * count * step * step)
        order = np.argsort(wide)
        rising = wide[order]
        cost = rising ** (2 / 3) * np.cumsum(rising ** (1 / 3) * gaps[order])
        place = int(np.searchsorted(cost, budget))
        limit = float(rising[min(place, rising.size - 1)])
        ratio = np.clip((limit / wide) ** (1 / 3), 1.0, widest / step)
        # Powers of two: neighbouring gaps are equal except where the spacing changes, which balances fluxes best.
        spacing = step * 2.0 ** np.floor(np.log2(ratio))
        # Around the bulk, where the loss may end sharply, keep the nodes for which the offset was chosen.
        at, spacing = np.repeat(losses, 2)[1:-1], np.repeat(spacing, 2)
        bulk = float(losses[int(np.argmax(lattice.mass))])
        ends = bulk + 64 * step * np.array([-1.0, 1.0])
        outside = np.interp(ends, at, spacing)
        spacing = np.where(np.abs(at - bulk) <= 64 * step, step, spacing)
        at = np.concatenate((at, ends, ends))
        spacing = np.concatenate((spacing, [step, step], outside))
        order = np.lexsort((np.where(at < bulk, -spacing, spacing), at))
        meshes.append(Mesh(step, at[order], spacing[order]))
    return meshes


def _first_step(pairs: PairTerms, log_lost: float) -> float:
    """A mesh coarse enough to be cheap: some thousand nodes over the widest loss."""
    widest = 0.0
    for pair, count in pairs:
        log_tail = _log_tail(pairs, count, log_lost)
        if pair.part is not None:
            low, high = pair.part.loss_range(max(log_tail, -60.0), log_tail)
            widest = max(widest, high - low)
        if pair.atoms.loss.size:
            widest = max(widest, float(pair.atoms.loss[-1] - pair.atoms.loss[0]))
    return max(widest, 1e-9) / 2000


def saddle_for_delta(terms: Terms, log_delta: float) -> tuple[float, float]:
    """The tilt at which the Renyi bound on epsilon is least, and that bound (of the lattice law, roughly)."""
    terms = [(_rough(lattice), count) for lattice, count in terms]

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        value = convolve.total_cumulant(terms, theta)
        value += theta * math.log(theta / (1 + theta)) - math.log1p(theta)
        return (value - log_delta) / theta

    grid = np.linspace(math.log(1e-3), math.log(1e6), 22)
    values = [bound(float(x)) for x in grid]
    best = int(np.nanargmin(values))
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    found = minimize_scalar(bound, bounds=(left, right), method="bounded", options={"xatol": 0.02})
    return math.exp(float(found.x)), float(min(found.fun, values[best]))


def _rough(lattice: Lattice) -> Lattice:
    """A law of far fewer nodes for the search of a tilt: neighbouring nodes put together."""
    block = -(-lattice.mass.size // _ROUGH)
    if block == 1:
        return lattice
    starts = np.arange(0, lattice.mass.size, block)
    mass = np.add.reduceat(lattice.mass, starts)
    mean = np.add.reduceat(lattice.mass * lattice.index, starts) / np.maximum(mass, 1e-300)
    return replace(lattice, index=np.round(mean).astype(np.int64), mass=mass)


def saddle_for_epsilon(terms: Terms, epsilon: float, start: float) -> float:
    """The tilt under which the composition's mean loss is epsilon; at least 1e-6, at most 1e8."""
    low, high = math.log(1e-6), math.log(1e8)
    x = min(max(math.log(start), low), high)
    for _ in range(60):
        _, mean, variance = convolve.tilted_moments(terms, math.exp(x))
        if mean < epsilon:
            low = x
        else:
            high = x
        slope = variance * math.exp(x)
        move = (epsilon - mean) / slope if slope > 0 else np.inf
        new = x + move
        if not low < new < high or abs(move) > 2:
            new = (low + high) / 2 if not (low < x + math.copysign(1.0, move) < high) else x + math.copysign(1.0, move)
        if abs(new - x) < 0.01 or abs(mean - epsilon) < 0.05 * math.sqrt(variance) or high - low < 0.01:
            return math.exp(new)
        x = new
    return math.exp(x)


def _crossing(law: Composed | Normal, delta: float, guess: float, *, above: bool) -> float:
    """An epsilon at which the law's delta is at most (`above`) or at least `delta`, to about 1e-10.

    Infinite, or 0, if there is none. It starts at the guess and moves out from there: far from it the bounds on delta
    may be no more than trivial ones.
    """
    if (law.infinite_above if above else law.infinite_below) >= delta:
        return math.inf
    low, high = -math.inf, math.inf  # delta at low is above the wanted one, at high it is not
    x = max(guess, 0.0)
    # log delta falls with a slope of about theta there; a law is useful within a few hundred of its tilt, and its width.
    move = max(min(max(0.002, 0.002 * x), 2 / law.theta, law.width / 16), 1e-9)
    tolerance = max(1e-10, 1e-11 * guess)
    log_delta = math.log(delta)
    last: tuple[float, float] | None = None
    for _ in range(200):
        current = law.delta_at(x)[1 if above else 0]
        if current <= delta:
            high = x
            if x == 0.0:
                return 0.0
        else:
            low = x
        if high - low <= tolerance:
            break
        log_current = math.log(max(current, 1e-320)) - log_delta
        new = math.nan
        if last is not None and last[0] != x and log_current != last[1]:
            new = x - log_current * (x - last[0]) / (log_current - last[1])
            # Overshoot a little, so that the bracket closes from both sides.
            new += math.copysign(tolerance / 3, new - x)
        last = (x, log_current)
        if math.isinf(high) or math.isinf(low):
            direction = 1.0 if math.isinf(high) else -1.0
            away = (new - x) * direction
            x = max(new if 0 < away < 20 * move else x + direction * move, 0.0)
            move *= 2
            if x > 1e9 * max(guess, 1.0):
                break
        else:
            x = new if low < new < high else (low + high) / 2
    return high if above else max(low, 0.0)


class _Clock:
    """Chooses meshes such that the work stays within seconds, as predicted from the last round."""

    def __init__(self, seconds: float) -> None:
        # This thread's own time: other work on the machine must not make brackets wider.
        self.end = time.thread_time() + seconds
        self.began = time.thread_time()

    def affordable(self, step: float, finer: float) -> float:
        """The finer step, or one between that the remaining time admits; `step` itself if there is none."""
        now = time.thread_time()
        last, left = now - self.began, self.end - now
        self.began = now
        # Work grows with the number of nodes, and faster once they no longer fit the processor's caches.
        return max(finer, step * min(1.6 * last / left, 1.0)) if left > 0 else step

    def refined(self, pairs: PairTerms, step: float, finer: float, goal: float) -> float:
        """The next step: an affordable one, or a finer one if only that puts atoms on nodes; `step` itself to end."""
        admitted = self.affordable(step, finer)
        # Atoms would make any step finer, so with no time left none is requested.
        aligned = step if admitted > 0.9 * step else _aligned(pairs, admitted, goal)
        return step if aligned > 0.9 * step else aligned


def epsilon_interval(
    pairs: PairTerms,
    delta: float,
    tolerance: float,
    relative: float,
    seconds: float = math.inf,
    moments: Callable[[], float] = lambda: math.inf,
) -> Interval:
    """Bounds on the epsilon of a composition of pairs at delta, proved (P1 to P3, test_extremes_reach_the_tolerance).

    The interval is at most max(tolerance, relative * epsilon) wide if a mesh within `MAX_CELLS`,
    `convolve.MAX_LENGTH` and the seconds gives that; else it is the narrowest reached, by the normal laws too (P25), and
    not above what `moments` says.
    """
    clock = _Clock(seconds)
    steps = sum(count for _, count in pairs)
    if steps == 0:
        return Interval(0.0, 0.0)
    known = infinite_bounds(pairs)
    lost = known.upper
    if known.lower > delta:
        return Interval(math.inf, math.inf)
    if any(pair.infinite >= 1 for pair, _ in pairs):
        return Interval(0.0, math.inf)
    spare = max(delta - lost, 1e-15 * delta)
    log_spare = math.log(spare)
    # A share s of delta that tails lose moves epsilon by about s / theta.
    log_lost = log_spare - _LARGEST_LOSS
    step = _aligned(pairs, _first_step(pairs, log_lost), tolerance)
    meshes = [Mesh(step)] * len(pairs)
    # Beyond the sum of the largest losses, delta is the mass of infinite loss.
    unsure = any(pair.unsure for pair, _ in pairs)
    best = Interval(0.0, _most(pairs) if lost <= delta and not unsure else math.inf)
    theta = epsilon = goal = math.nan
    read = tried = False
    wanted = Tolerance(tolerance, relative, seconds=seconds)
    earlier = (math.nan, math.nan)
    for _ in range(_ROUNDS):
        try:
            above, below = _lattices(pairs, meshes, log_lost, tolerance)
            # Rounding on a coarse mesh moves the saddle, and with it epsilon: both are sought again on every one.
            theta, bound = saddle_for_delta(above, log_spare)
            theta = max(theta, 1e-6)
            if not best.lower <= bound <= best.upper or not best.width < 0.1 * best.upper:
                epsilon = min(max(bound, 0.0), best.upper)
            longest = convolve.MAX_LENGTH if read else _FIRST_LENGTH
            upper, lower, law = _read(above, below, delta, epsilon, theta, longest)
            theta = law.theta
        except (TooFineError, TooLongError) as error:
            if not read:
                step = _coarser(pairs, step, error, tolerance)
                meshes = [Mesh(step)] * len(pairs)
                continue
            if not tried:
                tried, best = True, _epsilon_by_normal_laws(pairs, _below(best, moments), delta, wanted)
            step = _coarser(pairs, step, error, tolerance, convolve.MAX_LENGTH)
            if best.width <= wanted.for_epsilon(best.lower) or step > 0.9 * earlier[0]:
                break
            meshes = _meshes(above, law, epsilon, step, goal)
            continue
        read = True
        best = Interval(max(best.lower, lower), min(best.upper, upper))
        goal = max(tolerance, relative * best.lower)
        if best.width <= goal or math.isinf(best.lower):
            break
        middle = (best.lower + best.upper) / 2
        epsilon = middle if best.lower > best.upper / 2 else best.upper if math.isfinite(best.upper) else best.lower
        log_lost = log_spare - min(max(-math.log(0.1 * goal * theta + 1e-300), _LARGEST_LOSS), 12.0)
        order = _order(earlier, (step, best.width))
        earlier = (step, best.width)
        shrink = 0.85 * (goal / best.width) ** (1 / order) if math.isfinite(best.width) else 0.1
        finer = clock.refined(pairs, step, step * min(max(shrink, 1 / 40), 0.8), goal)
        if finer == step:
            break
        step = finer
        meshes = _meshes(above, law, epsilon, step, goal)
    if not tried and best.width > wanted.for_epsilon(best.lower):
        best = _epsilon_by_normal_laws(pairs, _below(best, moments), delta, wanted)
    return _widened(best)


def _below(interval: Interval, bound: Callable[[], float]) -> Interval:
    return Interval(interval.lower, max(min(interval.upper, bound()), interval.lower))


def delta_interval(pairs: PairTerms, epsilon: float, relative: float, seconds: float = math.inf) -> Interval:
    """Bounds on the delta of a composition of pairs at epsilon, proved (P1 to P3, test_small_deltas_keep_their_digits).

    The interval is at most relative * delta wide, or within 1e-300, or the narrowest reached within the seconds.
    """
    clock = _Clock(seconds)
    steps = sum(count for _, count in pairs)
    if steps == 0:
        return Interval(0.0, 0.0)
    known = infinite_bounds(pairs)
    lost = known.upper
    if any(pair.infinite >= 1 for pair, _ in pairs):
        return Interval(known.lower, 1.0)
    log_lost = -50.0
    step = _aligned(pairs, _first_step(pairs, log_lost), relative / 2)
    meshes = [Mesh(step)] * len(pairs)
    # No finite loss exceeds the sum of the largest, so finite losses contribute at most 1 - e^(epsilon - sum).
    beyond = -math.expm1(min(epsilon - _most(pairs), 0.0)) * (1 + _WIDEN)
    best = Interval(known.lower, min(lost + max(beyond, 0.0), 1.0))
    if any(pair.unsure for pair, _ in pairs):
        best = Interval(best.lower, 1.0)
    theta, log_delta = 1.0, math.nan
    earlier = goal = math.nan
    stalled = 0
    read = tried = False
    limits = Tolerance(delta_share=relative, seconds=seconds)
    for _ in range(_ROUNDS):
        try:
            above, below = _lattices(pairs, meshes, log_lost, 1e-4 / (1 + theta))
            theta = saddle_for_epsilon(above, epsilon, theta)
            total, _, variance = convolve.tilted_moments(above, theta)
            if math.isnan(log_delta):
                log_delta = (
                    total - theta * epsilon - math.log(1 + theta * math.sqrt(2 * math.pi * variance) * (1 + theta))
                )
                wanted = max(log_delta, math.log(lost) - 12.0 if lost > 0 else -np.inf) - 12.0
                if -1e5 < wanted < log_lost:
                    log_lost = wanted
                    continue
            longest = convolve.MAX_LENGTH if read else _FIRST_LENGTH
            law = convolve.compose(above, theta, epsilon, log_delta, longest=longest)
            other = convolve.compose(below, theta, epsilon, log_delta, longest=longest)
        except (TooFineError, TooLongError) as error:
            if not read:
                step = _coarser(pairs, step, error, relative / 2)
                meshes = [Mesh(step)] * len(pairs)
                continue
            if not tried:
                tried, best = True, _delta_by_normal_laws(pairs, best, epsilon, limits)
            step = _coarser(pairs, step, error, relative / 2, convolve.MAX_LENGTH)
            if best.width <= max(relative * best.lower, 1e-300) or step > 0.9 * earlier:
                break
            meshes = _meshes(above, law, epsilon, step, goal)
            continue
        read = True
        earlier = step
        before = best.width
        upper = law.delta_at(max(epsilon - law.shift, 0.0))[1] * (1 + _WIDEN)
        lower = other.delta_at(max(epsilon - other.shift, 0.0))[0] * (1 - _WIDEN)
        best = Interval(max(best.lower, lower), min(best.upper, upper))
        goal = max(relative * best.lower, 1e-300)
        stalled = stalled + 1 if best.width > 0.7 * before else 0
        if best.width <= goal or stalled == 2:
            break
        # Far from the goal, the width does not follow a power of the mesh: use a fixed factor.
        shrink = 0.85 * math.sqrt(goal / best.width) if best.lower > 0.3 * best.upper else 0.2
        goal = relative / (1 + theta)
        finer = clock.refined(pairs, step, step * min(max(shrink, 1 / 40), 0.8), goal)
        if finer == step:
            break
        step = finer
        meshes = _meshes(above, law, epsilon, step, goal)
    if not tried and best.width > max(relative * best.lower, 1e-300):
        best = _delta_by_normal_laws(pairs, best, epsilon, limits)
    return best


def _most(pairs: PairTerms) -> float:
    """An upper bound on all finite losses of a composition; infinite if they have none."""
    return max(math.fsum(count * _largest(pair) for pair, count in pairs), 0.0) * (1 + 1e-14) + 1e-300


def _largest(pair: Pair) -> float:
    tops = [float(pair.atoms.loss[-1])] if pair.atoms.loss.size else []
    return max([*tops, pair.part.high] if pair.part is not None else tops or [0.0])


def _widened(interval: Interval) -> Interval:
    if math.isinf(interval.lower):
        return interval
    return Interval(
        max(0.0, interval.lower * (1 - _WIDEN) - _WIDEN),
        interval.upper * (1 + _WIDEN) + (_WIDEN if interval.upper > 0 else 0.0),
    )


def _order(earlier: tuple[float, float], now: tuple[float, float]) -> float:
    """The power of the mesh by which a bracket's width shrinks, from two meshes: 2, or down to 1 for rounded atoms."""
    (step, width), (finer, narrower) = earlier, now
    if not (math.isfinite(width) and finer < step and 0 < narrower < width):
        return 2.0
    return min(max(math.log(width / narrower) / math.log(step / finer), 1.0), 2.0)


def _coarser(
    pairs: PairTerms, step: float, error: TooFineError | TooLongError, goal: float, longest: int = _FIRST_LENGTH
) -> float:
    """A coarser step in place of one whose circle is longer than `longest`, or whose mesh is too fine.

    It is one that has the atoms on nodes, if there is one.
    """
    nodes = error.nodes if isinstance(error, TooLongError) else math.inf
    wanted = step * (max(1.5, 1.2 * nodes / longest) if math.isfinite(nodes) else 4.0)
    aligned = (_aligned(pairs, most, goal, leading=True) for most in (wanted, 2 * wanted))
    return next((each for each in aligned if each > 1.2 * step), wanted)


def _read(
    above: Terms, below: Terms, delta: float, epsilon: float, theta: float, longest: int = convolve.MAX_LENGTH
) -> tuple[float, float, Composed]:
    """Upper and lower bounds on epsilon from lattice laws, with a corrected tilt if it was far off."""
    for _ in range(6):
        law = convolve.compose(above, theta, epsilon, math.log(delta), longest=longest)
        upper = _crossing(law, delta, epsilon, above=True)
        # The tilt is suitable if the tilted mean is within two deviations of the resulting epsilon.
        if math.isinf(upper):
            break
        new = saddle_for_epsilon(above, upper, theta)
        _, mean, variance = convolve.tilted_moments(above, theta)
        if abs(mean - upper) <= 2.0 * math.sqrt(variance) or abs(math.log(new / theta)) < 0.05:
            break
        theta, epsilon = new, upper
    upper = max(upper + law.shift, 0.0)
    guess = upper if math.isfinite(upper) else epsilon
    other = convolve.compose(below, theta, guess, math.log(delta), longest=longest)
    lower = _crossing(other, delta, guess, above=False)
    return upper, max(lower + other.shift, 0.0), law


def _by_normal_laws(
    pairs: PairTerms,
    log_lost: float,
    finest: float,
    tilt: Callable[[Terms, float], float],
    read: Callable[[Normal, Normal], tuple[float, float, bool]],
    clock: _Clock,
) -> None:
    """Read the normal laws of a composition of many steps, from above and from below, on meshes that get finer.

    `tilt` gives the tilt of a composition, from the laws that are not Gaussian and the variance of those that are. `read`
    gives the width of the bracket on epsilon that the two laws leave, the goal, and whether one of them alone is no nearer
    than what was known. Each mechanism has a mesh of its own, refined until its two discretizations differ by its share of
    the goal, or the normal law itself is what is too far: on the second mesh, no nearer than what was known.
    """
    gaussian = math.fsum(count * mu * mu for pair, count in pairs if (mu := gaussian_mu(pair)))
    pairs = [(pair, count) for pair, count in pairs if not gaussian_mu(pair)]
    steps = [_first_step([entry], log_lost) for entry in pairs]
    for number in range(_ROUNDS):
        meshes = [Mesh(_aligned([entry], step, finest)) for entry, step in zip(pairs, steps, strict=True)]
        try:
            above, below = _lattices(pairs, meshes, log_lost, finest)
            theta = tilt([(_rough(lattice), count) for lattice, count in above], gaussian)
            width, goal, far = read(normal(above, theta, gaussian), normal(below, theta, gaussian))
        except TooFineError:
            return
        # What each mechanism's mesh adds to the width.
        shares = [
            count * max(convolve.cumulant(upper, theta) - convolve.cumulant(lower, theta), 0.0) / theta
            for (upper, count), (lower, _) in zip(above, below, strict=True)
        ]
        if (
            width <= goal
            or (number and far)
            or sum(shares) < max(0.35 * goal, 0.3 * width if math.isfinite(width) else 0.0)
        ):
            return
        finer = [
            step * min(max(math.sqrt(0.3 * goal / len(pairs) / share), 1 / 40), 1.0) if share > 0 else step
            for step, share in zip(steps, shares, strict=True)
        ]
        if finer == steps or clock.affordable(1.0, 0.5) == 1.0:
            return
        steps = finer


def _epsilon_by_normal_laws(pairs: PairTerms, best: Interval, delta: float, tolerance: Tolerance) -> Interval:
    """An interval of epsilon, narrowed by the normal laws of the composition (P25)."""
    spare = max(delta - infinite_bounds(pairs).upper, 1e-15 * delta)

    def tilt(terms: Terms, gaussian: float) -> float:
        return tilt_for_delta(terms, gaussian, math.log(spare))

    known = best.width

    def read(above: Normal, below: Normal) -> tuple[float, float, bool]:
        nonlocal best
        upper = max(_crossing(above, delta, max(above.mean, 0.0), above=True) + above.shift, 0.0)
        lower = max(_crossing(below, delta, max(below.mean, 0.0), above=False) + below.shift, 0.0)
        alone = upper - _crossing(above, delta, max(above.mean, 0.0), above=False)
        best = Interval(max(best.lower, lower), min(best.upper, upper))
        return min(best.width, upper - lower), tolerance.for_epsilon(max(above.mean, best.lower)), alone >= known

    log_lost, clock = math.log(spare) - 12.0, _Clock(tolerance.seconds)
    _by_normal_laws(pairs, log_lost, tolerance.absolute, tilt, read, clock)
    return best


def _delta_by_normal_laws(pairs: PairTerms, best: Interval, epsilon: float, tolerance: Tolerance) -> Interval:
    """An interval of delta, narrowed by the normal laws of the composition (P25)."""

    def tilt(terms: Terms, gaussian: float) -> float:
        return tilt_for_epsilon(terms, gaussian, epsilon)

    def in_epsilon(interval: Interval, theta: float) -> float:
        return math.log(interval.upper / interval.lower) / theta if interval.lower > 0 else math.inf

    known = best

    def read(above: Normal, below: Normal) -> tuple[float, float, bool]:
        nonlocal best
        alone = Interval(*above.delta_at(max(epsilon - above.shift, 0.0)))
        upper = alone.upper * (1 + _WIDEN)
        lower = below.delta_at(max(epsilon - below.shift, 0.0))[0] * (1 - _WIDEN)
        best = Interval(max(best.lower, lower), min(best.upper, upper))
        # What moves epsilon as much.
        far = in_epsilon(alone, above.theta) >= in_epsilon(known, above.theta)
        return in_epsilon(best, above.theta), math.log1p(tolerance.delta_share) / above.theta, far

    log_lost, clock = math.log(max(best.lower, 1e-300)) - 12.0, _Clock(tolerance.seconds)
    _by_normal_laws(pairs, log_lost, tolerance.delta_share / 2, tilt, read, clock)
    return best


class LossDistribution:
    """The certified bracket as an accountant."""

    name = "pld"
    proved = True
    remark = ""

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """Bounds on epsilon at delta, within the tolerance or the nearest reached."""
        pairs = [(mechanism.pair(direction), count) for mechanism, count in composition.merged()]
        found = epsilon_interval(
            pairs,
            delta,
            tolerance.absolute,
            tolerance.relative,
            tolerance.seconds,
            lambda: epsilon_bound(composition, direction, delta)[0],
        )
        return Estimate.between(found.lower, found.upper)

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """Bounds on delta at epsilon, within the tolerance or the nearest reached."""
        pairs = [(mechanism.pair(direction), count) for mechanism, count in composition.merged()]
        found = delta_interval(pairs, epsilon, tolerance.delta_share, tolerance.seconds)
        return Estimate.between(found.lower, found.upper)
