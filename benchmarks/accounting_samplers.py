"""The samplers' brackets against enumeration of all batches of all small data sets, and against dp-accounting.

Part of accounting.py (`--samplers` runs this alone). Enumeration: for every pair of neighbouring data sets of a few records
with gradients in {-1, 0, 1/2, 1} the law of a step is a mixture of Gaussians, one for each batch. The largest hockey-stick
divergence must lie below the upper bound, and for tight brackets above the lower one. Random allocation into two batches:
by quadrature of a closed form.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import combinations, product
from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import logsumexp, ndtr
from scipy.stats import binom

from harness import Run
from heliograph.dp.accounting import delta_at, epsilon_at
from heliograph.dp.batches import AllocatedGaussian, FixedSizeGaussian, TruncatedGaussian, WithReplacementGaussian
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Mechanism, SampledGaussian

Law = list[tuple[float, float]]
GRADIENTS = (-1.0, 0.0, 0.5, 1.0)


def hockey_stick(a: Law, b: Law, s: float, e: float) -> float:
    """The hockey-stick divergence of two mixtures of N(mean, s^2), between the points where e^e times b crosses a."""
    means = [mean for _, mean in a + b]
    x = np.linspace(min(means) - 40 * s, max(means) + 40 * s, 4001)

    def log_ratio(at: Any) -> Any:
        first, second = (
            logsumexp([np.log(w) - (at - mean) ** 2 / (2 * s * s) for w, mean in law], axis=0) for law in (a, b)
        )
        return first - second - e

    def mass(at: float) -> float:
        return sum(w * float(ndtr((at - mean) / s)) for w, mean in a) - math.exp(e) * sum(
            w * float(ndtr((at - mean) / s)) for w, mean in b
        )

    above = log_ratio(x) > 0
    turns = np.flatnonzero(above[1:] != above[:-1])
    ends = [-math.inf, *(brentq(log_ratio, x[n], x[n + 1], xtol=1e-14) for n in turns), math.inf]
    first = 0 if above[0] else 1
    return sum(mass(ends[n + 1]) - mass(ends[n]) for n in range(first, len(ends) - 1, 2))


def merged(law: Iterable[tuple[float, float]]) -> Law:
    """One entry for each mean."""
    weights: dict[float, float] = {}
    for weight, mean in law:
        weights[mean] = weights.get(mean, 0.0) + weight
    return [(weight, mean) for mean, weight in weights.items()]


def fixed_size(data: tuple[float, ...], size: int) -> Law:
    batches = list(combinations(data, size))
    return merged((1 / len(batches), sum(batch)) for batch in batches)


def with_replacement(data: tuple[float, ...], size: int) -> Law:
    batches = list(product(data, repeat=size))
    return merged((1 / len(batches), sum(batch)) for batch in batches)


def truncated(data: tuple[float, ...], p: float, most: int) -> Law:
    law: Law = []
    for taken in product((0, 1), repeat=len(data)):
        weight = math.prod(p if t else 1 - p for t in taken)
        chosen = [g for g, t in zip(data, taken, strict=True) if t]
        kept = list(combinations(chosen, min(most, len(chosen))))
        law += [(weight / len(kept), sum(each)) for each in kept]
    return merged(law)


def added(count: int) -> Iterable[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Data sets of `count` records, and of one less."""
    return (((record, *rest), rest) for rest in product(GRADIENTS, repeat=count - 1) for record in GRADIENTS)


def replaced(count: int) -> Iterable[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Data sets of `count` records of which one differs."""
    for rest in product(GRADIENTS, repeat=count - 1):
        yield from (((one, *rest), (other, *rest)) for one in GRADIENTS for other in GRADIENTS)


def nulled(count: int) -> Iterable[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Data sets of `count` records of which one adds nothing."""
    return (((record, *rest), (0.0, *rest)) for rest in product(GRADIENTS, repeat=count - 1) for record in GRADIENTS)


def two_batches(s: float, e: float) -> float:
    """Delta of one epoch of random allocation into two batches."""
    mu, level = 1 / s, math.exp(e)

    def call(k: float) -> float:
        if k <= 0:
            return 1 - k
        d = (-math.log(k) + mu * mu / 2) / mu
        return float(ndtr(d) - k * ndtr(d - mu))

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def removed(x: float) -> float:
        return density(x) * call(2 * level - math.exp(mu * x - mu * mu / 2)) / 2

    def put_in(x: float) -> float:
        k = 2 / level - math.exp(mu * x - mu * mu / 2)
        return density(x) * level / 2 * (0.0 if k <= 0 else call(k) - 1 + k)

    return max(float(quad(term, -12, 12, limit=500, epsabs=1e-13)[0]) for term in (removed, put_in))


Cases = list[tuple[Mechanism, int, Callable[[tuple[float, ...]], Law], bool]]


# What docs/samplers.md calls them.
LABELS = {
    ("FixedSizeGaussian", "add_remove"): "fixed size, added or removed",
    ("FixedSizeGaussian", "replace"): "fixed size, replaced",
    ("WithReplacementGaussian", "add_remove"): "with replacement",
    ("TruncatedGaussian", "add_remove"): "truncated Poisson (2 of 4 records: much is cut off)",
    ("TruncatedGaussian", "zero_out"): "truncated Poisson, a record that adds nothing",
}


def enumeration() -> dict[str, dict[str, Any]]:
    """Brackets on delta beside the largest delta of all small data sets, by sampler."""
    cases: Cases = []
    for s in (0.8, 1.7, 4.0):
        cases += [
            (FixedSizeGaussian(2, 4, s), 4, lambda data: fixed_size(data, 2), True),
            (FixedSizeGaussian(1, 3, s), 3, lambda data: fixed_size(data, 1), True),
            (WithReplacementGaussian(2, 4, s), 4, lambda data: with_replacement(data, 2), True),
            (WithReplacementGaussian(3, 3, s), 3, lambda data: with_replacement(data, 3), True),
            (TruncatedGaussian(0.3, s, 2, 4), 4, lambda data: truncated(data, 0.3, 2), False),
        ]
    found_of: dict[str, dict[str, Any]] = {}

    def compared(name: str, mechanism: Mechanism, e: float, worst: float, found: Any, tight: bool) -> None:
        assert found.lower is not None
        assert found.upper is not None
        holds = worst <= found.upper + 1e-12 and (not tight or found.lower <= worst + 1e-12)
        row = found_of.setdefault(name, {"checked": 0, "wrong": 0, "most": 0.0, "values": []})
        row["checked"] += 1
        row["wrong"] += not holds
        row["most"] = max(row["most"], found.upper - worst)
        row["values"].append([mechanism.text(), e, worst, found.lower, found.upper])

    for mechanism, count, law, tight in cases:
        s = mechanism.arguments()["noise_multiplier"]
        relations = [("add_remove", added)]
        if isinstance(mechanism, FixedSizeGaussian):
            relations.append(("replace", replaced))
        if isinstance(mechanism, TruncatedGaussian):
            relations.append(("zero_out", nulled))
        for relation, neighbours in relations:
            laws = [(law(one), law(other)) for one, other in neighbours(count)]
            for e in (0.0, 0.4, 1.3):
                found = delta_at(mechanism, e, neighboring=relation)  # type: ignore[arg-type]
                worst = max(hockey_stick(*pair, s, e) for a, b in laws for pair in ((a, b), (b, a)))
                compared(LABELS[type(mechanism).__name__, relation], mechanism, e, worst, found, tight)
    for s in (0.6, 1.0, 3.0):
        for e in (0.0, 0.3, 1.0):
            mechanism = AllocatedGaussian(2, s)
            found = delta_at(mechanism, e, method="pld")
            compared("random allocation, two batches", mechanism, e, two_batches(s, e), found, True)
    return found_of


def theirs(event: Any, relation: str, at: float, moments: bool = False) -> float:
    """dp-accounting's epsilon of an event."""
    from dp_accounting import privacy_accountant
    from dp_accounting.pld import pld_privacy_accountant
    from dp_accounting.rdp import rdp_privacy_accountant

    neighbours = privacy_accountant.NeighboringRelation[relation]
    accountant = (
        rdp_privacy_accountant.RdpAccountant(neighboring_relation=neighbours)
        if moments
        else pld_privacy_accountant.PLDAccountant(neighbours, value_discretization_interval=1e-3)
    )
    return float(accountant.compose(event).get_epsilon(at))


def beside_dp_accounting(run: Run) -> None:
    """Epsilon at 1e-5 beside that of dp-accounting, where it has the sampler (it has no random allocation)."""
    from dp_accounting import dp_event as events

    steps, at = 1000, 1e-5

    def repeated(event: Any) -> Any:
        return events.SelfComposedDpEvent(event, steps)

    def added_to(event: Any) -> float:
        return theirs(repeated(event), "ADD_OR_REMOVE_ONE", at)

    def replaced_by(multiplier: float) -> float:
        """By Renyi moments; the multiplier is of C, or of the distance 2 C."""
        once = events.SampledWithoutReplacementDpEvent(60_000, 600, events.GaussianDpEvent(multiplier))
        return theirs(repeated(once), "REPLACE_ONE", at, moments=True)

    ks = range(12)
    weights = [float(binom.pmf(k, 600, 1 / 60_000)) for k in ks]
    weights[0] += 1 - sum(weights)
    fixed, drawn = FixedSizeGaussian(600, 60_000, 2.0), WithReplacementGaussian(600, 60_000, 2.0)
    cases: list[tuple[str, Mechanism, str, dict[str, Callable[[], float]]]] = [
        (
            f"truncated Poisson, at most {most}",
            TruncatedGaussian(0.01, 1.0, most, 60_000),
            "add_remove",
            {"": lambda most=most: added_to(events.TruncatedSubsampledGaussianDpEvent(60_000, 0.01, most, 1.0))},  # type: ignore[misc]
        )
        for most in (800, 765, 700, 600)
    ]
    cases += [
        (
            "truncated Poisson, at most 600, a record that adds nothing",
            TruncatedGaussian(0.01, 1.0, 600, 60_000),
            "zero_out",
            {},
        ),
        (
            "Poisson, a record replaced",
            SampledGaussian(0.01, 1.0),
            "replace",
            {
                "": lambda: theirs(
                    repeated(events.PoissonSampledDpEvent(0.01, events.GaussianDpEvent(1.0))), "REPLACE_ONE", at
                )
            },
        ),
        (
            "fixed size, added or removed",
            fixed,
            "add_remove",
            {
                " (that pair, as a mixture of Gaussians)": lambda: added_to(
                    events.MixtureOfGaussiansDpEvent(2.0, [0.0, 2.0], [0.99, 0.01])
                )
            },
        ),
        (
            "fixed size, replaced",
            fixed,
            "replace",
            {
                f" (Renyi, multiplier {multiplier:g})": lambda multiplier=multiplier: replaced_by(multiplier)  # type: ignore[misc]
                for multiplier in (2.0, 1.0)
            },
        ),
        (
            "with replacement",
            drawn,
            "add_remove",
            {
                " (the same mixture)": lambda: added_to(
                    events.MixtureOfGaussiansDpEvent(2.0, [2.0 * k for k in ks], weights)
                )
            },
        ),
    ]
    for name, mechanism, relation, others in cases:

        def make(
            mechanism: Mechanism = mechanism, relation: str = relation, others: dict[str, Any] = others
        ) -> dict[str, Any]:
            began = time.perf_counter()
            found = epsilon_at(Composition.of(mechanism * steps), at, neighboring=relation)  # type: ignore[arg-type]
            seconds, began, texts = time.perf_counter() - began, time.perf_counter(), []
            for note, call in others.items():
                try:
                    texts.append(f"{call():.4f}{note}")
                except Exception as error:  # a peer may fail in any way; the row says how
                    texts.append(f"{type(error).__name__}: {str(error)[:80]}")
            return {
                "here": f"[{found.lower:.4f}, {found.upper:.4f}]",
                "dp_accounting": ", ".join(texts) or "-",
                "seconds": seconds,
                "dp_accounting_seconds": time.perf_counter() - began,
            }

        run.row({"part": "beside", "sampler": name}, make)


def samplers(run: Run, peers: bool) -> None:
    """Both tables."""
    names = [*LABELS.values(), "random allocation, two batches"]
    made: dict[str, dict[str, Any]] = {}
    for name in names:

        def make(name: str = name) -> dict[str, Any]:
            made.update(made or enumeration())
            return {"above": f"{made[name]['most']:.2g}", **made[name]}

        run.failures += ["a bracket is wrong"] * bool(run.row({"part": "enumerated", "sampler": name}, make)["wrong"])
    if peers:
        beside_dp_accounting(run)
