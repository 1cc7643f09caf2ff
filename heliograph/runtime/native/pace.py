"""The pace of this machine: a rotation, measured and as the built-in prices have it."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass

import numpy as np

from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime.memory import keep_freed_arrays
from heliograph.runtime.native.ciphertext import Ciphertext, SparseKeys, key_over, words_of
from heliograph.runtime.native.primitives import NativePrimitives
from heliograph.runtime.native.tables import ChainTables, prime_rows
from heliograph.runtime.native.warm import warm_up

# A ring that takes milliseconds; its levels are free of the security table, for nothing is encrypted.
_RING = Ring(14, 34, 30, 8, 3, None, short_specials=True)
_REPEATS = 25
# Predictions that are further off than this deserve a table of the machine's own.
_ALLOWED = 4 / 3


@dataclass(frozen=True, slots=True)
class Pace:
    """The time of one rotation at N = 2^14.

    `measured_ms`: the median on this machine.
    `predicted_ms`: the time by the built-in prices.
    """

    measured_ms: float
    predicted_ms: float

    @property
    def fits(self) -> bool:
        """Whether the prices are at most a third off, to either side."""
        ratio = self.measured_ms / self.predicted_ms
        return 1 / _ALLOWED <= ratio <= _ALLOWED

    def __str__(self) -> str:
        return f"a rotation takes {self.measured_ms:.2f} ms here, {self.predicted_ms:.2f} ms by the built-in prices"


def pace() -> Pace:
    """Measure; half a second, and the time to compile the kernels where they are not in numba's cache."""
    do, x = of_zeros(_RING)
    times = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        do.rotate(x, 1)
        times.append(1e3 * (time.perf_counter() - begun))
    return Pace(statistics.median(times), BUILT_IN.rotate_ms(_RING, _RING.levels))


def of_zeros(ring: Ring) -> tuple[NativePrimitives, Ciphertext]:
    """Primitives with a key of zeros, and a ciphertext of zeros at the top: times do not depend on residues."""
    warm_up()
    keep_freed_arrays()
    primes, special = ring.primes, ring.special_primes
    tables = ChainTables.of(ring, special, prime_rows(ring.ring_dim, primes + special))
    key = key_over(rotation := EvaluationKey("rotation", ring, "rotation", 1), _zeros(words_of(rotation)))
    assert not isinstance(key, SparseKeys)
    x = Ciphertext(_zeros(2 * tables.words(ring.levels) * ring.ring_dim).reshape(2, -1, ring.ring_dim), ring.levels)
    return NativePrimitives(tables, lambda kind, amount: key), x


def _zeros(words: int) -> Array:
    return np.zeros(words, dtype=np.uint32)


if __name__ == "__main__":
    found = pace()
    print(json.dumps({**asdict(found), "fits": found.fits}))
