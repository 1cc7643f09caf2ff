"""Measures the primitives' costs on this machine, and fits the compiler's cost table to them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize

from heliograph.artifact.costs import save_costs
from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import MissingPackageError
from heliograph.execution import primitives as timing
from heliograph.execution.prices import call_ms
from heliograph.execution.primitives import PRIMITIVES
from heliograph.execution.protocol import Call
from heliograph.machine import load_average, usable_cores
from heliograph.runtime.backend import NATIVE, OPENFHE
from heliograph.tools.measuring.beside import beside, sample_values
from heliograph.tools.measuring.turns import medians_ms

# Rings of the sizes used by programs, without the security table, so that levels can be chosen freely. The last ring is
# for a deep network, whose keys fit no cache.
_RINGS = (
    Ring(12, 45, 35, 3, 2, None, short_specials=True),
    Ring(13, 45, 35, 5, 3, None, short_specials=True),
    Ring(14, 50, 40, 7, 4, None, short_specials=True),
    Ring(15, 50, 40, 9, 3, None, short_specials=True),
    Ring(15, 36, 32, 20, 5, None, short_specials=True),
    Ring(13, 38, 28, 5, 3, None, short_specials=True),
    Ring(15, 34, 30, 20, 3, None, short_specials=True),
)
_REPEATS = 15
_PRIMITIVES = (
    "rotate",
    "rotate_hoisted",
    "decompose",
    "relinearize",
    "rescale",
    "mul",
    "mul_plain",
    "summed_product",
    "add",
)
# Times are linear in these.
_COEFFICIENTS = tuple(
    field.name for field in dataclasses.fields(CostTable) if field.name not in ("machine", "word_share")
)


@dataclass(frozen=True, slots=True)
class Sample:
    """The median time of one primitive, in milliseconds, with its ring and level."""

    primitive: str
    ring: Ring
    level: int
    milliseconds: float

    def predicted(self, costs: CostTable) -> float:
        """The table's prediction, without counting a call's overhead twice."""
        other = _OTHERS.get(self.primitive)
        return (
            other(self.ring, self.level, costs)
            if other
            else call_ms(Call(self.primitive, self.level, 2), self.ring, costs)
        )


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted table, the samples that it was fitted to, and its deviation from them (worst and median factor)."""

    costs: CostTable
    samples: tuple[Sample, ...]
    seconds: float
    load_average: float | None

    @property
    def factors(self) -> list[float]:
        ratios = [sample.predicted(self.costs) / sample.milliseconds for sample in self.samples]
        return sorted(max(ratio, 1.0 / ratio) if ratio > 0 else float("inf") for ratio in ratios)

    def to_dict(self) -> dict[str, Any]:
        return {
            "costs": dataclasses.asdict(self.costs),
            "seconds": self.seconds,
            "load_average": self.load_average,
            "median_factor": statistics.median(self.factors),
            "worst_factor": self.factors[-1],
            "samples": [
                {
                    "primitive": sample.primitive,
                    "ring_dim": sample.ring.ring_dim,
                    "level": sample.level,
                    "measured_ms": sample.milliseconds,
                    "fitted_ms": sample.predicted(self.costs),
                }
                for sample in self.samples
            ],
        }

    def __str__(self) -> str:
        load = "unknown" if self.load_average is None else f"{self.load_average:.2f}"
        lines = [f"{len(self.samples)} primitives measured in {self.seconds:.0f} s, load average {load}"]
        lines += [f"  {name:<10} {getattr(self.costs, name):.4g}" for name in _COEFFICIENTS]
        lines.append(
            f"the table is off by a factor of {statistics.median(self.factors):.2f} in the median, "
            f"{self.factors[-1]:.2f} at worst"
        )
        if (self.load_average or 0.0) > 0.5 * (os.cpu_count() or 1):
            lines.append("the machine was busy: measure again when it is quiet")
        return "\n".join(lines)


# Prices besides the primitives: encoding a plaintext, and generating a key.
_OTHERS: dict[str, Callable[[Ring, int, CostTable], float]] = {
    "encode": lambda ring, level, costs: costs.encode_ms(ring, level),
    "key": lambda ring, level, costs: costs.key_ms(ring),
}


def machine_name() -> str:
    """The name of a measured table: processor and threads."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    except OSError:
        pass
    threads = os.environ.get("OMP_NUM_THREADS") or str(usable_cores())
    return f"measured on {model[:100]}, {threads} threads"


def calibrate(
    progress: Callable[[int, int], None] | None = None, rings: tuple[Ring, ...] = _RINGS
) -> dict[str, Calibration]:
    """Measure the primitives of each installed backend (about a minute on a quiet machine) and fit a table.

    Nothing is written. The native backend needs numba.
    """
    begun, load = time.perf_counter(), load_average()
    with contextlib.ExitStack() as stack:
        operations = {
            (backend, name, number, level): operation
            for number, ring in enumerate(rings)
            for (backend, name, level), operation in _prepare(ring, stack).items()
        }
        medians = medians_ms(operations, _REPEATS, progress)
    seconds, made = time.perf_counter() - begun, {}
    for backend in dict.fromkeys(key[0] for key in medians):
        samples = [
            Sample(name, rings[number], level, milliseconds / (PRIMITIVES[name].calls if name in PRIMITIVES else 1))
            for (of, name, number, level), milliseconds in medians.items()
            if of == backend
        ]
        costs = fit_costs(samples, f"{machine_name()}, {backend}")
        made[backend] = Calibration(costs, tuple(samples), seconds, load)
    return made


def calibrate_and_save(progress: Callable[[int, int], None] | None = None) -> tuple[dict[str, Calibration], str]:
    """Measure, and save the table of the servers' default backend for this user; compilations then use it.

    Returns the calibrations by backend, and the file's path.
    """
    results = calibrate(progress)
    best = results.get(NATIVE) or results.get(OPENFHE)
    if best is None:
        raise MissingPackageError("there is no backend to measure", hint="pip install numba")
    return results, str(save_costs(best.costs))


def rotation_ms(ring: Ring) -> dict[str, float]:
    """The median time of one rotation at the top of a chain, by backend, in turns: a quick look at the machine."""
    with contextlib.ExitStack() as stack:
        calls = {
            backend: PRIMITIVES["rotate"].ready(
                do, timing.Sample(ring, ring.levels, 2, 1, encrypted(np.zeros(ring.slots), ring.levels))
            )
            for backend, (do, encrypted) in stack.enter_context(beside(ring)).backends().items()
        }
        return medians_ms(calls, _REPEATS)


def fit_costs(samples: list[Sample], machine: str) -> CostTable:
    """The table with nonnegative coefficients and the least squared relative error."""
    if all(sample.ring.words(sample.level) == 2 * (sample.level + 1) for sample in samples):
        return _fitted(samples, machine, BUILT_IN.word_share)[0]
    found = scipy.optimize.minimize_scalar(
        lambda share: _fitted(samples, machine, share)[1], bounds=(0.05, 1.0), method="bounded"
    )
    return _fitted(samples, machine, float(found.x))[0]


def _fitted(samples: list[Sample], machine: str, word_share: float) -> tuple[CostTable, float]:
    """The table with this share, and the norm of its errors."""
    rows = []
    for sample in samples:
        row = []
        for name in _COEFFICIENTS:
            unit = CostTable(machine, **{other: float(other == name) for other in _COEFFICIENTS}, word_share=word_share)
            row.append(sample.predicted(unit) / sample.milliseconds)
        rows.append(row)
    matrix = np.array(rows)
    # Scale the columns to the same size; otherwise the smallest coefficients would be lost.
    size = np.maximum(np.linalg.norm(matrix, axis=0), 1e-30)
    solution, norm = scipy.optimize.nnls(matrix / size, np.ones(len(samples)))
    numbers = {name: float(v) for name, v in zip(_COEFFICIENTS, solution / size, strict=True)}
    return CostTable(machine, **numbers, word_share=word_share), float(norm)


def _prepare(ring: Ring, stack: contextlib.ExitStack) -> dict[tuple[str, str, int], Callable[[], Any]]:
    """The primitives by backend and level: at the top of the chain, in the middle and near the bottom."""
    values = sample_values(ring)
    both = stack.enter_context(beside(ring))
    # Keys are made by the client, whatever the server's backend.
    key = EvaluationKey("rotation", ring, "rotation", 1)
    operations: dict[tuple[str, str, int], Callable[[], Any]] = {}
    for backend, (do, encrypted) in both.backends().items():
        operations[backend, "key", ring.levels] = functools.partial(both.cryptor.evaluation_key_bytes, key)
        for level in sorted({ring.levels, (ring.levels + 1) // 2, 1}):
            x = encrypted(values, level)
            product, scaled = do.mul(x, x), do.mul_scalar(x, 0.5, ring.scale_bits)
            operands = dict.fromkeys(_PRIMITIVES, x) | {"relinearize": product, "rescale": scaled}
            for name, operand in operands.items():
                sample = timing.Sample(ring, level, 2, 1, operand)
                operations[backend, name, level] = PRIMITIVES[name].ready(do, sample)
            encode = functools.partial(do.encode, values, float(ring.scale_bits), level)
            operations[backend, "encode", level] = encode
    return operations
