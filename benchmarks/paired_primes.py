"""A level of 40 to 54 bits as two primes of half as many, which take one word: whether there are enough, and the times.

Chains of as many levels and digits take turns in one process, with one prime a level or two. A rescale by two primes is
a relinearization that divides by the first of them at once, and one more division. Keys and ciphertexts are zeros: times
do not depend on residues. Ratios are to one prime of 48 bits, which is computed in doubles.

Part `programs`: the chains of argmax, softmax, a certified network and training as they are planned, beside those of as many
levels of 48 or 50 bits, the shortest of which there are enough pairs, with the fewest digits that are secure. The primes of
pairs that are timed have 26 bits, so that the ring has enough of them; those of 24 bits take the same words.
"""

from __future__ import annotations

import heliograph as hg  # noqa: F401  # first: it sets OpenMP's waiting policy  # isort: skip

import functools
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from harness import Run, benchmark

from heliograph.ckks.primes import WORD_LIMIT
from heliograph.ckks.ring import Ring
from heliograph.ckks.security import max_log_pq
from heliograph.runtime.native.ciphertext import Ciphertext
from heliograph.runtime.native.pace import of_zeros
from heliograph.tools.measuring.turns import medians_ms

# The chains: (primes of a level, its bits). Doubles hold residues of up to 49 bits.
DOUBLES = "one prime of 48 bits"
CHAINS = {DOUBLES: (1, 48), "one prime of 54 bits": (1, 54), "two of 25 bits": (2, 50), "two of 27 bits": (2, 54)}
LEVELS, DIGITS, FIRST_BITS, REPEATS = 8, 3, {1: 58, 2: 34}, 9
# Planned chains at N = 2^16: the levels, their bits and the digits; and the bits of pairs.
PROGRAMS = {
    "argmax": (25, 40, 2, 50),
    "softmax": (24, 46, 4, 48),
    "certified network": (29, 44, 4, 48),
    "training": (30, 44, 4, 48),
}


def pairs(log_ring: int, bits: int) -> int:
    """The number of pairs of primes of one word whose product has `bits` bits.

    Each has a prime of at most half as many bits; the other makes up for it, as long as it takes one word.
    """
    step, most = 2 << log_ring, 1 << bits // 2
    sieve = np.ones(most, dtype=bool)
    for number in range(2, math.isqrt(most) + 1):
        if sieve[number]:
            sieve[number * number :: number] = False
    small = 1 + step * (1 + np.flatnonzero(sieve[1 + step :: step]))
    return int((2.0**bits / small < WORD_LIMIT).sum())


def operations(ring: Ring, primes_each: int) -> dict[str, Callable[[], Any]]:
    """What programs spend their time on, in a chain with so many primes a level, at its top."""
    do, x = of_zeros(ring)
    plain = do.encode(np.linspace(-1, 1, ring.slots), 40.0, ring.levels)

    def rescaled() -> Ciphertext:
        found = do.relinearize(do.mul(x, x))
        for _ in range(primes_each):
            found = do.rescale(found)
        return found

    return {
        "rotate": lambda: do.rotate(x, 1),
        "product": rescaled,
        "sum_of_products": lambda: do.sums_of_products([x], [plain], [[(0, 0)] * 8]),
        "encode": lambda: do.encode(np.linspace(-1, 1, ring.slots), 40.0, ring.levels),
    }


@functools.cache
def measured(log_ring: int) -> dict[str, dict[str, Any]]:
    """The values of each chain on one ring."""
    calls: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, (count, bits) in CHAINS.items():
        ring = Ring(log_ring, FIRST_BITS[count], bits // count, count * LEVELS, DIGITS, None, short_specials=True)
        calls |= {(name, kind): call for kind, call in operations(ring, count).items()}
    times = medians_ms(calls, REPEATS)
    kinds = {kind for _, kind in calls}
    found, by_bits = {}, {str(bits): pairs(log_ring, bits) for bits in range(40, 56, 2)}
    for name, (count, bits) in CHAINS.items():
        ratios = {f"{kind}_ratio": times[name, kind] / times[DOUBLES, kind] for kind in kinds}
        found[name] = {
            "pairs_of_primes": by_bits[str(bits)] if count == 2 else None, "pairs_by_bits": by_bits,
            **{f"{kind}_ms": times[name, kind] for kind in kinds}, **ratios,
            "ratio": statistics.geometric_mean([ratios[f"{kind}_ratio"] for kind in kinds - {"encode"}]),
        }  # fmt: skip
    return found


COLUMNS = {
        "pairs_of_primes": "", "rotate_ms": "ms", "product_ms": "ms", "sum_of_products_ms": "ms", "encode_ms": "ms",
        "rotate_ratio": "", "product_ratio": "", "sum_of_products_ratio": "", "encode_ratio": "", "ratio": "",
    }  # fmt: skip


def fewest_digits(levels: int, bits: int) -> int:
    """The fewest digits with which so many levels of pairs are secure at N = 2^16."""
    rings = (Ring(16, FIRST_BITS[2], bits // 2, 2 * levels + 1, digits, short_specials=True) for digits in range(1, 60))
    return next(ring.digits for ring in rings if ring.nominal_log_pq < max_log_pq(16, 128))


def of_program(name: str) -> dict[str, Any]:
    """The ratios of a program's chain in pairs to its own, and those of keys."""
    levels, bits, digits, pair_bits = PROGRAMS[name]
    pair_digits = fewest_digits(levels, pair_bits)
    own = Ring(16, bits + 8, bits, levels, digits, None, short_specials=True)
    two = Ring(16, FIRST_BITS[2], 26, 2 * levels + 1, pair_digits, None, short_specials=True)
    calls = {(ring, kind): call for ring, each in ((own, 1), (two, 2)) for kind, call in operations(ring, each).items()}
    times = medians_ms(calls, REPEATS)
    return dict.fromkeys(COLUMNS) | {
        "levels": levels, "bits": bits, "digits": digits, "pair_bits": pair_bits, "pair_digits": pair_digits,
        "rotate_ms": times[own, "rotate"], "pair_rotate_ms": times[two, "rotate"],
        **{f"{kind}_ratio": times[two, kind] / times[own, kind] for kind in ("rotate", "product", "sum_of_products")},
        "key_ratio": two.rotation_key_bytes / own.rotation_key_bytes,
    }  # fmt: skip


@benchmark(
    columns=COLUMNS,
    minutes=2,
)
def paired_primes(run: Run) -> None:
    for log_ring in (14, 15, 16):
        for name in CHAINS:
            run.row(
                {"part": "levels", "ring_dim": 1 << log_ring, "level": name},
                lambda name=name, log_ring=log_ring: measured(log_ring)[name],  # type: ignore[misc]
            )
    for program in PROGRAMS:
        run.row({"part": "programs", "program": program}, functools.partial(of_program, program))


if __name__ == "__main__":
    paired_primes.main()
