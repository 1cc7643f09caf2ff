"""Ours beside the published accountants: width and seconds on a grid of compositions, and who is right where they differ.

Runs everything in one process, one thread. Peers (extra `peers`: prv-accountant, dp-accounting, opacus) that are not
installed are left out and said to be.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import logging
import math
import signal
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import mpmath
import threadpoolctl
from mpmath import mp, mpf

from accounting_samplers import samplers
from harness import Run, benchmark, option
from heliograph.dp.accounting import Tolerance, epsilon_at
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Approximate, Gaussian, Laplace, SampledGaussian
from heliograph.errors import HeliographError


class TimeUp(Exception):
    """A peer took longer than the limit."""


@dataclass
class Result:
    """What one accountant gave on one composition."""

    lower: float | None
    upper: float | None
    seconds: float
    note: str = ""

    @property
    def width(self) -> float:
        return math.inf if self.lower is None or self.upper is None else self.upper - self.lower


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeUp

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def timed(call: Callable[[], tuple[float | None, float | None]], limit: float) -> Result:
    started = time.perf_counter()
    try:
        with limited(limit), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            lower, upper = call()
    except TimeUp:
        return Result(None, None, limit, "over the time limit")
    except HeliographError as error:
        return Result(None, None, time.perf_counter() - started, error.what)
    except Exception as error:  # a peer may fail in any way; the table says how
        return Result(None, None, time.perf_counter() - started, f"{type(error).__name__}: {error}"[:60])
    return Result(lower, upper, time.perf_counter() - started)


def ours(composition: Composition, delta: float, width: float | None = None) -> Result:
    tolerance = Tolerance() if width is None else Tolerance(absolute=width, relative=0.0)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        bracket = epsilon_at(composition, delta, tolerance=tolerance)
        times.append(time.perf_counter() - started)
    return Result(bracket.lower, bracket.upper, min(times), bracket.method)


def peer_prv(composition: Composition, delta: float) -> tuple[float | None, float | None]:
    from prv_accountant import PRVAccountant
    from prv_accountant.privacy_random_variables import (
        GaussianMechanism,
        LaplaceMechanism,
        PoissonSubsampledGaussianMechanism,
        PureDPMechanism,
    )

    def variable(mechanism: Any) -> Any:
        if isinstance(mechanism, SampledGaussian):
            return PoissonSubsampledGaussianMechanism(
                sampling_probability=mechanism.p, noise_multiplier=mechanism.noise_multiplier
            )
        if isinstance(mechanism, Gaussian):
            return GaussianMechanism(noise_multiplier=mechanism.noise_multiplier)
        if isinstance(mechanism, Laplace):
            return LaplaceMechanism(mu=mechanism.epsilon)
        return PureDPMechanism(mechanism.epsilon)

    variables = [variable(mechanism) for mechanism, _ in composition]
    counts = [count for _, count in composition]
    # Approximate mechanisms lose their delta outright; the accountant gets what is left.
    kept = sum(k * math.log1p(-m.delta) for m, k in composition if isinstance(m, Approximate))
    rest = (delta + math.expm1(kept)) / math.exp(kept)
    accountant = PRVAccountant(prvs=variables, max_self_compositions=counts, eps_error=0.01, delta_error=rest * 1e-3)
    low, _, high = accountant.compute_epsilon(rest, counts)
    return float(low), float(high)


def peer_dp_accounting(composition: Composition, delta: float) -> tuple[float | None, float | None]:
    from dp_accounting.pld import privacy_loss_distribution as pld

    ends = []
    for pessimistic in (False, True):
        whole: Any = None
        for mechanism, count in composition:
            if isinstance(mechanism, SampledGaussian | Gaussian):
                each = pld.from_gaussian_mechanism(
                    mechanism.noise_multiplier,
                    pessimistic_estimate=pessimistic,
                    sampling_prob=getattr(mechanism, "p", 1.0),
                    value_discretization_interval=1e-4,
                )
            elif isinstance(mechanism, Laplace):
                each = pld.from_laplace_mechanism(1 / mechanism.epsilon, pessimistic_estimate=pessimistic)
            else:
                from dp_accounting.pld import common

                each = pld.from_privacy_parameters(
                    common.DifferentialPrivacyParameters(mechanism.epsilon, mechanism.delta)
                )
            each = each.self_compose(count)
            whole = each if whole is None else whole.compose(each)
        ends.append(float(whole.get_epsilon_for_delta(delta)))
    return ends[0], ends[1]


def peer_opacus(composition: Composition, delta: float) -> tuple[float | None, float | None]:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    for mechanism, count in composition:
        if not isinstance(mechanism, SampledGaussian):
            raise ValueError("sampled Gaussians only")
        accountant.history.append((mechanism.noise_multiplier, mechanism.p, count))
    return None, float(accountant.get_epsilon(delta=delta, eps_error=0.01, delta_error=delta * 1e-3))


def peer_opacus_rdp(composition: Composition, delta: float) -> tuple[float | None, float | None]:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for mechanism, count in composition:
        if not isinstance(mechanism, SampledGaussian):
            raise ValueError("sampled Gaussians only")
        accountant.history.append((mechanism.noise_multiplier, mechanism.p, count))
    return None, float(accountant.get_epsilon(delta=delta))


PEERS: dict[str, tuple[str, Callable[[Composition, float], tuple[float | None, float | None]]]] = {
    "prv-accountant": ("prv_accountant", peer_prv),
    "dp-accounting": ("dp_accounting", peer_dp_accounting),
    "opacus prv": ("opacus", peer_opacus),
    "opacus rdp": ("opacus", peer_opacus_rdp),
}


def delta_50_digits(p: float, multiplier: float, steps: int, at: float, remove: bool, detail: int = 1) -> mpf:
    """delta at epsilon `at` for sampled Gaussian steps, by inversion along the saddle line with 50 digits.

    Independent of the package: both integrals by the trapezoid rule, whose convergence the caller checks by doubling
    `detail`.
    """
    with mp.workdps(50):
        mu, p_ = 1 / mpf(multiplier), mpf(p)

        def log_moment(z: Any, nodes: list[mpf], logs: list[mpf], step: mpf) -> Any:
            # E over x ~ N(0, 1) of the ratio to a power.
            power = 1 + z if remove else -z
            total = mpmath.fsum(mpmath.exp(power * b - x * x / 2) for x, b in zip(nodes, logs, strict=True))
            return mpmath.log(total * step / mpmath.sqrt(2 * mpmath.pi))

        def grid(theta: float) -> tuple[list[mpf], list[mpf], mpf]:
            low = -16 - (0 if remove else theta / multiplier)
            high = 16 + ((theta + 1) / multiplier if remove else 0)
            step = min(mpf(1) / 8, mpf(multiplier) / 8) / detail
            count = int((high - low) / step)
            nodes = [low + step * i for i in range(count + 1)]
            logs = [mpmath.log(1 - p_ + p_ * mpmath.exp(mu * x - mu * mu / 2)) for x in nodes]
            return nodes, logs, step

        # The saddle in double precision is good enough.
        best, theta = math.inf, 1.0
        for candidate in [10 ** (k / 10) for k in range(-15, 26)]:
            with mp.workdps(20):
                value = float(steps * log_moment(mpf(candidate), *grid(candidate)).real - candidate * mpf(at))
            if value < best:
                best, theta = value, candidate
        nodes, logs, step = grid(theta)
        centre = log_moment(mpf(theta), nodes, logs, step)
        side = mpf(10) ** -4
        spread = mpmath.sqrt(
            steps
            * (
                log_moment(theta + side, nodes, logs, step) - 2 * centre + log_moment(theta - side, nodes, logs, step)
            ).real
            / side**2
        )
        eta = 2 * mpmath.pi / (24 * spread) / detail
        total = mpf(0)
        for j in range(int(40 / spread / eta) + 1):
            z = mpmath.mpc(theta, eta * j)
            log_value = steps * log_moment(z, nodes, logs, step) - z * mpf(at)
            term = (mpmath.exp(log_value) / (z * (1 + z))).real
            total += term if j == 0 else 2 * term
        return total * eta / (2 * mpmath.pi)


def renyi_50_digits(p: float, noise_multiplier: float, steps: int, delta: float) -> mpf:
    """An upper bound on epsilon in 50 digits, from the closed form of the Renyi divergence at whole orders.

    Mironov, Talwar and Zhang 2019, section 3.3; that of the other direction is smaller (their theorem 5).
    """
    with mpmath.workdps(50):
        best = mpf("inf")
        for order in range(2, 65):
            moment = mpmath.fsum(
                mpmath.binomial(order, m)
                * (1 - mpf(p)) ** (order - m)
                * mpf(p) ** m
                * mpmath.exp(mpf(m * m - m) / (2 * mpf(noise_multiplier) ** 2))
                for m in range(order + 1)
            )
            rho = steps * mpmath.log(moment) / (order - 1)
            best = min(best, rho + mpmath.log(1 / mpf(delta)) / (order - 1) + mpmath.log(1 - mpf(1) / order))
        return best


def judged_by_renyi(composition: Composition, delta: float, claim: Result, otherwise: str) -> str:
    """Whether a peer's lower end lies above a Renyi bound; `otherwise` where that bound does not tell."""
    mechanism, steps = composition.items[0]
    assert isinstance(mechanism, SampledGaussian)
    bound = renyi_50_digits(mechanism.p, mechanism.noise_multiplier, steps, delta)
    if claim.lower is not None and claim.lower > bound:
        return f"50 digits: a Renyi bound is {mpmath.nstr(bound, 6)}, so theirs is wrong"
    return otherwise


def judged(composition: Composition, delta: float, claim: Result, bracket: Result) -> str:
    """Which of two brackets that do not overlap is wrong, by 50 digits."""
    if len(composition) != 1 or not isinstance(composition.items[0][0], SampledGaussian):
        return "not checked: no 50-digit value for this composition"
    mechanism, steps = composition.items[0]
    if mechanism.p * steps < 10:
        otherwise = "not checked: too few effective steps for the 50-digit inversion"
        return judged_by_renyi(composition, delta, claim, otherwise)

    def delta_at(e: float) -> mpf:
        found = []
        for remove in (True, False):
            coarse = delta_50_digits(mechanism.p, mechanism.noise_multiplier, steps, e, remove, 1)
            fine = delta_50_digits(mechanism.p, mechanism.noise_multiplier, steps, e, remove, 2)
            # What is not converged must not matter for which side of delta the value lies on.
            if abs(coarse - fine) > mpf("0.01") * abs(fine - mpf(delta)):
                raise ArithmeticError
            found.append(fine)
        return max(found)

    def holds(result: Result) -> bool:
        fine = True
        if result.lower is not None and result.lower > 0:
            fine &= delta_at(result.lower) >= mpf(delta)
        if result.upper is not None:
            fine &= delta_at(result.upper) <= mpf(delta)
        return bool(fine)

    try:
        our, their = "holds" if holds(bracket) else "IS WRONG", "holds" if holds(claim) else "is wrong"
        return f"50 digits: ours {our}, theirs {their}"
    except ArithmeticError:
        otherwise = "not checked: the 50-digit inversion did not converge"
        return judged_by_renyi(composition, delta, claim, otherwise)


def mixtures() -> list[tuple[str, Composition, float]]:
    step = SampledGaussian(0.01, 1.0)
    return [
        (
            "issue",
            step * 1000 + Laplace(0.1) * 5 + Gaussian(5) * 3 + Approximate(0.1, 1e-8) * 20,
            1e-5,
        ),
        (
            "two rates",
            step * 1000 + SampledGaussian(0.004, 0.8) * 2000 + Laplace(0.1) * 5 + Gaussian(5) * 3,
            1e-5,
        ),
        ("epochs", step * 2000 + SampledGaussian(0.02, 1.2) * 2000 + Gaussian(20) * 40, 1e-6),
    ]


def on_the_grid(quick: bool) -> dict[str, Any]:
    """Ours on the full grid at the default tolerance: how many are within it, and seconds."""
    ours(Composition.of(SampledGaussian(0.01, 1.0) * 10), 1e-5)  # the first call pays imports
    grid = list(
        itertools.product(
            (1e-4, 1e-3, 0.01, 0.05, 0.2),
            (0.5, 1.0, 4.0, 10.0),
            (1, 100, 1000, 10_000, 100_000),
            (1e-5, 1e-8, 1e-12),
        )
    )
    if quick:
        grid = grid[:: len(grid) // 24]
    missed, times = [], []
    for p, multiplier, steps, delta in grid:
        found = ours(Composition.of(SampledGaussian(p, multiplier) * steps), delta)
        assert found.lower is not None
        label = f"p={p:g} noise={multiplier:g} steps={steps} delta={delta:g}"
        times.append((found.seconds, label))
        if found.width > max(1e-3, 1e-4 * found.lower):
            missed.append(f"{label}: width {found.width:.3g}")
    slowest = max(times)
    return {
        "compositions": len(grid),
        "not_within_tolerance": len(missed),
        "median_s": statistics.median(seconds for seconds, _ in times),
        "slowest_s": slowest[0],
        "slowest": slowest[1],
        "missed": missed,
    }


# (p, noise multiplier, steps, delta)
SINGLE = (
    (0.01, 1.0, 1000, 1e-5),
    (0.05, 1.0, 100, 1e-5),
    (0.2, 1.0, 1, 1e-5),
    (1e-4, 0.5, 1000, 1e-5),
    (1e-4, 0.5, 100_000, 1e-12),
    (1e-3, 0.8, 10_000, 1e-5),
    (0.01, 0.5, 1000, 1e-5),
    (0.01, 1.0, 10_000, 1e-5),
    (0.01, 1.0, 100_000, 1e-5),
    (0.01, 1.0, 1000, 1e-12),
    (0.01, 10.0, 10_000, 1e-8),
    (0.05, 4.0, 10_000, 1e-5),
    (0.2, 4.0, 10_000, 1e-5),
    (0.2, 10.0, 100_000, 1e-12),
)


def beside(composition: Composition, delta: float, peers: dict[str, Any], limit: float) -> dict[str, Any]:
    """Ours beside the peers (theirs at eps_error 0.01: width 0.02; ours also at their width)."""
    best, coarse = ours(composition, delta), ours(composition, delta, 0.02)
    row: dict[str, Any] = {
        "lower": best.lower, "upper": best.upper, "width": best.width, "seconds": best.seconds, "method": best.note,
        "seconds at 0.02": coarse.seconds,
    }  # fmt: skip
    for name, call in peers.items():
        found = timed(partial(call, composition, delta), limit)
        apart = (found.upper is not None and found.upper < (best.lower or 0.0)) or (
            found.lower is not None and found.lower > (best.upper or math.inf)
        )
        verdict = judged(composition, delta, found, best) if apart else ""
        row[name] = " ".join(filter(None, (bracket_text(found), verdict)))
        row[f"{name}_seconds"] = found.seconds
        if name == "prv-accountant" and (found.upper is not None or "time limit" in found.note):
            row["prv-accountant over ours"] = found.seconds / coarse.seconds
    return row


def bracket_text(result: Result) -> str:
    if result.note and result.lower is None and result.upper is None:
        return result.note[:28]
    low, high = ("" if end is None else f"{end:.4f}" for end in (result.lower, result.upper))
    return f"[{low}, {high}]"


def cost(composition: Composition) -> dict[str, Any]:
    """Seconds and width of the bracket at delta 1e-8."""
    each = []
    for _ in range(3):
        started = time.perf_counter()
        bracket = epsilon_at(composition, 1e-8, method="pld")
        each.append(time.perf_counter() - started)
    return {"pld_s": min(each), "pld_width": bracket.width}


@benchmark(
    option("--quick", action="store_true", help="a small grid"),
    option("--limit", type=float, default=20.0, help="seconds a peer may take on one composition"),
    option("--samplers", action="store_true", selects=True, help="only the samplers' part"),
    memory_gb=4,
    minutes=30,
)
def accounting(run: Run) -> None:
    given = run.options
    logging.disable(logging.WARNING)
    peers = {name: call for name, (module, call) in PEERS.items() if importlib.util.find_spec(module)}
    for name in PEERS.keys() - peers.keys():
        run.say(f"{name}: not installed, left out")
    with threadpoolctl.threadpool_limits(1):
        samplers(run, "dp-accounting" in peers)
        if given.samplers:
            return
        run.row({"part": "grid"}, partial(on_the_grid, given.quick))
        entries = [
            (f"p={p:g} s={s:g} k={k} d={d:g}", Composition.of(SampledGaussian(p, s) * k), d)
            for p, s, k, d in SINGLE[: 3 if given.quick else None]
        ]
        entries += [(f"mix {name}", composition, delta) for name, composition, delta in mixtures()]
        for label, composition, delta in entries:
            key = {"part": "peers", "composition": label, "among": sorted(peers)}
            run.row(key, partial(beside, composition, delta, peers, given.limit))
        for p, s in ((0.01, 1.0), (0.2, 10.0)):
            for steps in (100, 1000, 10_000, 100_000, 1_000_000):
                key = {"part": "cost", "p": p, "noise": s, "steps": steps}
                run.row(key, partial(cost, Composition.of(SampledGaussian(p, s) * steps)))


if __name__ == "__main__":
    accounting.main()
