"""Random compositions over the whole range of parameters: none wrong, how many reach the tolerance, seconds and memory.

Multipliers 0.01 to 1e4, probabilities 1e-9 to 1, steps to 1e9, deltas 1e-300 to 0.9, one to three kinds. Each bracket on
epsilon is held against two others: Renyi moments, whose upper bound must be above the lower end, and the bracket on delta at
both of its ends, which must not contradict it. (For references with 50 digits, exact enumeration and the peers see
accounting.py and tests/dp.)

    python benchmarks/accounting_random.py --count 2000 --seed 1

prints a line for each composition that is wrong, or above 30 s or 2 GB, and a summary. It takes hours; --count 40 minutes.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import time

from heliograph.dp.accounting import delta, epsilon
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Gaussian, Laplace, Mechanism, SampledGaussian, SampledLaplace


def between(rng: random.Random, low: float, high: float) -> float:
    return 10 ** rng.uniform(math.log10(low), math.log10(high))


def mechanism(rng: random.Random) -> Mechanism:
    kind = rng.random()
    if kind < 0.7:
        return SampledGaussian(between(rng, 1e-9, 1), between(rng, 1e-2, 1e4))
    if kind < 0.8:
        return Gaussian(between(rng, 1e-2, 1e4))
    if kind < 0.9:
        return Laplace(between(rng, 1e-6, 10))
    return SampledLaplace(between(rng, 1e-9, 1), between(rng, 1e-6, 10))


def wrong(composition: Composition, at: float) -> tuple[list[str], bool, float]:
    """What is wrong with a bracket, whether it reached its tolerance, and its seconds."""
    began = time.perf_counter()
    found = epsilon(composition, at)
    seconds = time.perf_counter() - began
    problems = []
    assert found.lower is not None
    assert found.upper is not None
    if found.lower > found.upper:
        problems.append("the lower bound is above the upper")
    moments = epsilon(composition, at, method="rdp").upper
    if moments is not None and moments < found.lower * (1 - 1e-9):
        problems.append(f"Renyi moments prove {moments!r}")
    for end, above in ((found.upper, True), (found.lower, False)):
        if 0 < end < 1e6:
            there = delta(composition, end)
            assert there.lower is not None
            assert there.upper is not None
            if above and there.lower > at * (1 + 1e-6):
                problems.append(f"delta at the upper bound is at least {there.lower!r}")
            if not above and there.upper < at * (1 - 1e-6):
                problems.append(f"delta at the lower bound is at most {there.upper!r}")
    return problems, found.reached, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    failed = reached = slow = 0
    longest = 0.0
    for number in range(chosen.count):
        kinds = rng.choice((1, 1, 2, 3))
        items = tuple((mechanism(rng), int(between(rng, 1, 3e8))) for _ in range(kinds))
        composition, at = (
            Composition(items),
            min(between(rng, 1e-300, 1) if rng.random() < 0.3 else between(rng, 1e-12, 1e-2), 0.9),
        )
        problems, fine, seconds = wrong(composition, at)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        failed, reached, slow = failed + bool(problems), reached + fine, slow + (seconds > 30)
        longest = max(longest, seconds)
        if problems or seconds > 30 or memory > 2:
            print(number, composition.text(), at, problems, f"{seconds:.1f} s, {memory:.2f} GB so far", flush=True)
    print(
        f"{chosen.count} compositions: {failed} wrong, {reached} within the tolerance, {slow} above 30 s"
        f" (longest {longest:.1f} s), {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"
    )


if __name__ == "__main__":
    main()
