"""Random compositions over the whole range of parameters: none wrong, how many reach the tolerance, seconds and memory.

Multipliers 0.01 to 1e4, probabilities 1e-9 to 1, steps to 1e9, deltas 1e-300 to 0.9, one to three kinds. Each bracket on
epsilon is held against two others: Renyi moments, whose upper bound must be above the lower end, and the bracket on delta at
both of its ends, which must not contradict it. (For references with 50 digits, exact enumeration and the peers see
accounting.py and tests/dp.) The bracket on delta may be a tenth wide, and takes three seconds: it is there to contradict,
not to be quoted.

Every composition has a number, and its parameters follow from seed and number. It is computed in a process of its own, which
is ended after --budget seconds (bracket and checks together) and may hold 4 GB. Seconds are those of the processor, so that
what else runs does not count; one thread. A run of hours can be made in parts of --minutes.
"""

from __future__ import annotations

import math
import random
import time
from functools import partial
from typing import Any

from harness import Run, benchmark, fresh_peak, limited, option, peak
from heliograph.dp.accounting import Tolerance, delta_at, epsilon_at
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Gaussian, Laplace, Mechanism, SampledGaussian, SampledLaplace

MOST_MEMORY = 4 << 30


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


def drawn(seed: int, number: int) -> tuple[Composition, float]:
    """A composition and its delta."""
    rng = random.Random(f"{seed}/{number}")
    kinds = rng.choice((1, 1, 2, 3))
    items = tuple((mechanism(rng), int(between(rng, 1, 1e9 / kinds))) for _ in range(kinds))
    extreme = rng.random() < 0.3
    return Composition(items), min(between(rng, 1e-300, 1) if extreme else between(rng, 1e-12, 1e-2), 0.9)


def judged(composition: Composition, at: float) -> dict[str, Any]:
    """A bracket on epsilon at a delta, what it took, and what is wrong with it."""
    fresh_peak()
    began, ticked = time.perf_counter(), time.process_time()
    found = epsilon_at(composition, at)
    row: dict[str, Any] = {"seconds": time.process_time() - ticked, "elapsed": time.perf_counter() - began}
    row |= {"memory": peak(), "lower": found.lower}
    row |= {"upper": found.upper, "reached": found.reached, "reason": found.reason, "problems": []}
    assert found.lower is not None
    assert found.upper is not None
    if found.lower > found.upper:
        row["problems"].append("the lower bound is above the upper")
    moments = epsilon_at(composition, at, method="rdp").upper
    if moments is not None and moments < found.lower * (1 - 1e-9):
        row["problems"].append(f"Renyi moments prove {moments!r}")
    for end, above in ((found.upper, True), (found.lower, False)):
        if 0 < end < 1e6:
            there = delta_at(composition, end, tolerance=Tolerance(delta_share=0.1, seconds=3))
            assert there.lower is not None
            assert there.upper is not None
            if above and there.lower > at * (1 + 1e-6):
                row["problems"].append(f"delta at the upper bound is at least {there.lower!r}")
            if not above and there.upper < at * (1 - 1e-6):
                row["problems"].append(f"delta at the lower bound is at most {there.upper!r}")
    return row


def _caught(composition: Composition, at: float) -> dict[str, Any]:
    try:
        return judged(composition, at)
    except Exception as error:  # whatever it raises is what is looked for
        return {"problems": [f"{type(error).__name__}: {error}"[:300]]}


def row(seed: int, number: int, budget: float) -> dict[str, Any]:
    """A composition, and what became of it in a process of its own."""
    composition, at = drawn(seed, number)
    found, why = limited(_caught, composition, at, seconds=budget, memory_bytes=MOST_MEMORY)
    if found is None:
        late = why.startswith("not within")
        found = {"problems": [] if late else [why], **({"left_out": why} if late else {})}
    return {"text": composition.text(), "delta": at, **found}


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the rows show together."""
    done = [row for row in rows if "seconds" in row]
    return {
        "compositions": len(rows),
        "wrong": sum(bool(row["problems"]) for row in rows),
        "reached_share": sum(row["reached"] for row in done) / max(len(done), 1),
        "above_30_s": sum(row["seconds"] > 30 for row in done),
        "longest_s": max((row["seconds"] for row in done), default=0.0),
        "most_memory": max((row["memory"] for row in done), default=0),
        "left_out": sum("left_out" in row for row in rows),
    }


@benchmark(
    option("--count", type=int, default=2000, selects=True),
    option("--first", type=int, default=0, selects=True, help="begin with this number"),
    option("--seed", type=int, default=1),
    option("--minutes", type=float, default=math.inf, selects=True, help="begin no composition after this many"),
    option("--budget", type=float, default=300.0, help="seconds of the processor for a composition and its checks"),
    memory_gb=5,
    minutes=150,
)
def accounting_random(run: Run) -> None:
    given, began, rows = run.options, time.perf_counter(), []
    for number in range(given.first, given.count):
        if time.perf_counter() - began > 60 * given.minutes:
            break
        rows.append(run.row({"number": number}, partial(row, given.seed, number, given.budget)))
    run.row({"numbers": f"{given.first} to {given.first + len(rows) - 1}"}, partial(totals, rows))
    run.failures += [f"{each['text']}: {problem}" for each in rows for problem in each["problems"]]


if __name__ == "__main__":
    accounting_random.main()
