"""Each primitive on both backends: OpenFHE's wheel against our own kernels, with the same keys, in one process.

Rings from N = 2^13 to 2^16, near the top, in the middle and near the end of their chains; with one thread and with all.
The two backends take turns, so that other work on the machine slows both. `--json` prints the object only.
"""

from __future__ import annotations

import heliograph as hg  # noqa: F401  # first: it sets OpenMP's waiting policy  # isort: skip

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heliograph.ckks.ring import Ring
from heliograph.execution.primitives import PRIMITIVES, Sample
from heliograph.execution.protocol import sums_size
from heliograph.tools.measuring.beside import AMOUNT, beside, sample_values
from heliograph.tools.measuring.calibrate import machine_name
from heliograph.tools.measuring.turns import medians_ms

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


def measured(rings: tuple[Ring, ...]) -> Iterator[dict[str, Any]]:
    """One row for each primitive, ring and level: the medians of both backends, in milliseconds."""
    for ring in rings:
        with beside(ring) as made:
            values = sample_values(ring)
            for level in sorted({ring.levels, ring.levels // 2, 1}, reverse=True):
                for name in NAMES:
                    calls = {}
                    for backend, (do, encrypted) in made.backends().items():
                        x = encrypted(values, level)
                        size = sums_size(8, 16) if name == "weighted_sums" else 2
                        x = do.mul(x, x) if name == "relinearize" else x
                        calls[backend] = PRIMITIVES[name].ready(do, Sample(ring, level, size, AMOUNT, x))
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


def in_child(threads: int, log_rings: list[int]) -> list[dict[str, Any]]:
    """The rows of a process with this many threads: both libraries take their number when they are loaded."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    command = [sys.executable, str(Path(__file__)), "--rows", *map(str, log_rings)]
    found: list[dict[str, Any]] = json.loads(
        subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    return [{"threads": threads, **row} for row in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    parser.add_argument("--rings", type=int, nargs="*", default=[13, 14, 15, 16], help="log2 of the ring dimensions")
    parser.add_argument("--rows", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rows is not None:
        print(json.dumps(list(measured(tuple(ring for ring in RINGS if ring.log_ring in options.rows)))))
        return
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    rows = [row for threads in sorted({1, cores}) for row in in_child(threads, options.rings)]
    for row in rows:
        row["ratio"] = row["native_ms"] / row["openfhe_ms"]
    result = {
        "machine": machine_name(), "load_average": load, "geomean_ratio": _geomean(rows),
        "geomean_by_threads": {
            str(threads): _geomean([row for row in rows if row["threads"] == threads]) for threads in sorted({1, cores})
        },
        "primitives": rows,
    }  # fmt: skip
    if options.json:
        print(json.dumps(result))
        return
    print(f"{result['machine']}, load average {load:.2f}; milliseconds of OpenFHE's wheel and of our kernels")
    for row in rows:
        print(
            f"{row['threads']} threads  N=2^{row['ring_dim'].bit_length() - 1}  level {row['level']:2d}  "
            f"{row['primitive']:15s} {row['openfhe_ms']:9.2f} {row['native_ms']:9.2f}  {row['ratio']:.2f}"
        )
    print(f"geometric mean of the ratios: {result['geomean_ratio']:.3f}, by threads {result['geomean_by_threads']}")


def _geomean(rows: list[dict[str, Any]]) -> float:
    return math.exp(statistics.fmean(math.log(row["native_ms"] / row["openfhe_ms"]) for row in rows))


if __name__ == "__main__":
    main()
