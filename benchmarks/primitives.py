"""Each primitive on both backends: OpenFHE's wheel against our own kernels, with the same keys, in one process.

Rings from N = 2^13 to 2^16, near the top, in the middle and near the end of their chains; with one thread and with all.
The two backends take turns, so that other work on the machine slows both.
"""

from __future__ import annotations

import heliograph as hg  # noqa: F401  # first: it sets OpenMP's waiting policy  # isort: skip

import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from harness import Run, apart, benchmark, cores, option
from heliograph.ckks.ring import Ring
from heliograph.execution.primitives import PRIMITIVES, Sample
from heliograph.execution.protocol import sums_size

# Chains as programs have them: small networks, one with a softmax, one that bootstraps.
RINGS = (
    Ring(13, 42, 34, 3, 2, None),
    Ring(14, 42, 34, 6, 2, None),
    Ring(15, 60, 45, 13, 3, None),
    Ring(16, 60, 55, 23, 4, None),
)
NAMES = (
    "add", "accumulate", "add_plain", "mul", "mul_plain", "summed_product", "mul_scalar", "rotate", "rotate_hoisted",
    "decompose", "conjugate", "relinearize", "rescale", "weighted_sums",
)  # fmt: skip
REPEATS = {13: 21, 14: 15, 15: 9, 16: 5}


def ready(do: Any, name: str, x: Any, ring: Ring, level: int, amount: int) -> Callable[[], Any]:
    """A call of a primitive on a fresh ciphertext; `amount` is the rotation that has a key."""
    x = do.mul(x, x) if name == "relinearize" else x
    size = sums_size(8, 16) if name == "weighted_sums" else 2
    call: Callable[[], Any] = PRIMITIVES[name].ready(do, Sample(ring, level, size, amount, x))
    return call


def measured(rings: tuple[Ring, ...]) -> Iterator[dict[str, Any]]:
    """One row for each primitive, ring and level: the medians of both backends, in milliseconds."""
    # Not at the top: versions.py takes what is above into versions that had these elsewhere.
    from heliograph.tools.measuring.beside import AMOUNT, beside, sample_values
    from heliograph.tools.measuring.turns import medians_ms

    for ring in rings:
        with beside(ring) as made:
            values = sample_values(ring)
            for level in sorted({ring.levels, ring.levels // 2, 1}, reverse=True):
                for name in NAMES:
                    calls = {}
                    for backend, (do, encrypted) in made.backends().items():
                        calls[backend] = ready(do, name, encrypted(values, level), ring, level, AMOUNT)
                    yield {
                        "primitive": name, "ring_dim": ring.ring_dim, "level": level, "digits": ring.digits,
                        **{
                            f"{backend}_ms": ms / PRIMITIVES[name].calls
                            for backend, ms in medians_ms(calls, REPEATS[ring.log_ring]).items()
                        },
                    }  # fmt: skip
                encoders = {
                    backend: lambda do=do, level=level: do.encode(values, float(ring.scale_bits), level)  # noqa: B023
                    for backend, (do, _) in made.backends().items()
                }
                yield {
                    "primitive": "encode", "ring_dim": ring.ring_dim, "level": level, "digits": ring.digits,
                    **{f"{backend}_ms": ms for backend, ms in medians_ms(encoders, REPEATS[ring.log_ring]).items()},
                }  # fmt: skip


def of_ring(log_ring: int) -> dict[str, Any]:
    """The rows of a ring and the geometric mean of their ratios."""
    rows = list(measured(tuple(ring for ring in RINGS if ring.log_ring == log_ring)))
    for row in rows:
        row["ratio"] = row["native_ms"] / row["openfhe_ms"]
    mean = math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows))
    levels = {row["level"] for row in rows}
    ratios = {
        name: math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows if row["primitive"] == name))
        for name in (*NAMES, "encode")
    }
    return {"geomean_ratio": mean, "levels": sorted(levels), **ratios, "primitives": rows}


@benchmark(
    option("--rings", type=int, nargs="*", default=[13, 14, 15, 16], help="log2 of the ring dimensions"),
    columns={"geomean_ratio": "", **dict.fromkeys((*NAMES, "encode"), "")},
    packages=("openfhe",),
    memory_gb=4,
    minutes=4,
)
def primitives(run: Run) -> None:
    """The columns are our times over OpenFHE's, means over the levels."""
    # Both libraries take their number of threads when they are loaded.
    for threads in sorted({1, cores()}):
        for log_ring in run.options.rings:
            key = {"threads": threads, "log_ring": log_ring}
            run.row(key, partial(apart, "primitives:of_ring", log_ring, threads=threads))


if __name__ == "__main__":
    primitives.main()
