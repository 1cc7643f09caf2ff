"""Tables of a chain for the kernels: its primes, their transforms, the constants of its changes of basis."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.ckks.primes import is_short
from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime.native.kernels.rows import Known
from heliograph.runtime.native.kernels.transforms import barrett_ratio, prime_tables, ratio_of
from heliograph.runtime.native.kernels.vectors import LANES
from heliograph.runtime.native.kernels.word_transforms import word_tables
from heliograph.runtime.native.shared import Shared
from heliograph.runtime.residues import automorphism_places, smallest_root


@dataclass(frozen=True, eq=False)
class Primes:
    """Primes and the tables of their transforms, which kernels take as `known`.

    `short`: whether primes below `WORD_LIMIT` have rows of one word; otherwise all rows are of two.

    Megabytes at full size: shared while in use, which needs weak references to it.
    """

    primes: tuple[int, ...]
    known: Known
    short: bool = True

    def rows(self, primes: Sequence[int]) -> Array:
        """The rows of a polynomial over some of the primes: (n, 2), see `kernels.rows`."""
        places = np.array([self.primes.index(prime) for prime in primes], dtype=np.int64)
        ends = np.cumsum([0, *(self.words(prime) for prime in primes)])
        return np.stack([places, ends[:-1]], axis=1)

    def words(self, *primes: int) -> int:
        """The words for each coefficient over these primes."""
        return sum(1 if self.short and is_short(prime) else 2 for prime in primes)


_PRIMES: Shared[Primes] = Shared()


def prime_rows(ring_dim: int, primes: tuple[int, ...], short: bool = True) -> Primes:
    """The tables of these primes, in their order."""
    return _PRIMES.get((ring_dim, primes, short), lambda: _prime_rows(ring_dim, primes, short))


def _prime_rows(ring_dim: int, primes: tuple[int, ...], short: bool) -> Primes:
    words = {prime: word_tables(ring_dim, prime) for prime in primes if short and is_short(prime)}
    longs = {prime: prime_tables(ring_dim, prime) for prime in primes if prime not in words}
    places = {prime: place for some in (words, longs) for place, prime in enumerate(some)}
    moduli = [
        (p, p.bit_length(), barrett_ratio(p), places[p], -pow(p, -1, 1 << 32) % (1 << 32), p in words) for p in primes
    ]
    last = [pow(ring_dim, -1, prime) for prime in primes]

    def stacked(arrays: list[Array], kind: Any, dimensions: int) -> Array:
        # Kernels are compiled for a number of dimensions, which an empty table has too.
        return np.stack(arrays) if arrays else np.empty((0,) * dimensions, dtype=kind)

    return Primes(
        primes,
        Known(
            np.array(moduli, dtype=np.uint64),
            stacked([table.outer for table in longs.values()], np.uint64, 4),
            stacked([table.inner for table in longs.values()], np.uint64, 6),
            stacked([table.steps for table in words.values()], np.uint32, 4),
            stacked([table.lanes for table in words.values()], np.uint32, 2),
            stacked([table.lanes_back for table in words.values()], np.uint32, 2),
            with_ratio(last, primes),
        ),
        short,
    )


def with_ratio(values: Sequence[int], primes: Sequence[int]) -> Array:
    """Numbers with their ratios for `times_constant`: (n, 2)."""
    pairs = [(value % prime, ratio_of(value % prime, prime)) for value, prime in zip(values, primes, strict=True)]
    return np.array(pairs, dtype=np.uint64).reshape(len(pairs), 2)


@dataclass(frozen=True, slots=True, eq=False)
class Digits:
    """Constants for splitting a polynomial over the first `towers` primes into digits in the extended basis.

    `rows`: the rows of the primes, the modulus first, then the special primes.
    `own`: (towers, 2), 1/N times the inverse of the digit's other primes, modulo each prime.
    `up`: (towers, rows, 2), the product of the digit's other primes, modulo every prime.
    """

    towers: int
    alpha: int
    rows: Array
    own: Array
    up: Array


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """Constants for dividing a polynomial by the product of its last primes: the special primes, a level's last, or
    both.

    `own`: (last, 2), 1/N times the inverse of the product of the other last primes, modulo each last prime.
    `down`: (last, kept, 2), the product of the other last primes modulo each kept prime; if `nearest`, one more row
    holds minus the whole product (`keyswitch.wholes`).
    `inverse`: (kept, 2), the inverse of the whole product.
    """

    rows: Array
    kept: int
    own: Array
    down: Array
    inverse: Array
    nearest: bool = False


class ChainTables:
    """The constants of one chain of primes in digits of `alpha`; `every` has the tables of all primes in use.

    Key switches are rounded to the `nearest` (`Ring.rounds_to_nearest`), or as OpenFHE rounds them: on average down by
    half the number of special primes, which adds up in low-frequency slots.
    """

    def __init__(
        self,
        ring_dim: int,
        primes: tuple[int, ...],
        alpha: int,
        special: tuple[int, ...],
        every: Primes,
        nearest: bool = False,
    ) -> None:
        self.nearest = nearest
        self.ring_dim, self.primes, self.alpha, self.special, self.every = ring_dim, primes, alpha, special, every
        self.known = every.known
        self.rows = every.rows(primes)
        self._starts = np.cumsum([0, *(every.words(prime) for prime in primes)])
        self._special_words = every.words(*special)
        self._lanes = np.arange(ring_dim, dtype=np.uint32) % LANES
        # Cached on this object: a cache on the class would keep every chain that ever existed.
        self.basis = functools.cache(self._basis)
        self.digits = functools.cache(self._digits)
        self.automorphism = functools.cache(self._automorphism)
        self.special_division = functools.cache(self._special_division)
        self.rescaling = functools.cache(self._rescaling)
        self.special_rescaling = functools.cache(self._special_rescaling)
        self.lift = functools.cache(self._lift)

    @staticmethod
    def of(ring: Ring, special: tuple[int, ...], every: Primes, primes: tuple[int, ...] | None = None) -> ChainTables:
        """The tables of a ring, or of a companion chain with fewer `primes`, each of which is a digit."""
        alpha = ring.alpha if primes is None else 1
        return ChainTables(ring.ring_dim, primes or ring.primes, alpha, special, every, ring.rounds_to_nearest)

    @property
    def slots(self) -> int:
        return self.ring_dim // 2

    def words(self, level: int, wide: bool = False) -> int:
        """The words for each coefficient of a polynomial at a level, and over the special primes too if `wide`."""
        return int(self._starts[level + 1]) + wide * self._special_words

    def level_of(self, words: int, wide: bool = False) -> int:
        """The level of a polynomial with this many words."""
        return int(np.searchsorted(self._starts, words - wide * self._special_words)) - 1

    def _basis(self, level: int, wide: bool) -> tuple[tuple[int, ...], Array]:
        """The primes of a level and their rows, followed by the special primes if `wide`."""
        primes = self.primes[: level + 1] + (self.special if wide else ())
        return primes, self.every.rows(primes)

    def _lift(self, towers: int) -> Array:
        """The product of the special primes modulo each of the first primes, for `times_constant`: (towers, 2)."""
        return with_ratio([math.prod(self.special)] * towers, self.primes[:towers])

    def _digits(self, towers: int) -> Digits:
        """The digits of a polynomial with this many primes."""
        primes, alpha = self.primes[:towers], self.alpha
        every = primes + self.special
        inverse = self.ring_dim
        own, up = [], []
        for i, prime in enumerate(primes):
            begin = i // alpha * alpha
            rest = math.prod(primes[begin : begin + alpha]) // prime
            own.append(pow(inverse * rest, -1, prime))
            up.append(with_ratio([rest] * len(every), every))
        rows = self.basis(towers - 1, True)[1]
        return Digits(towers, alpha, rows, with_ratio(own, primes), np.stack(up))

    def _special_division(self, towers: int) -> Division:
        """Division of a polynomial over the first primes and the special ones by the product of these."""
        rows = self.basis(towers - 1, True)[1]
        return self._division(self.primes[:towers], self.special, rows, self.nearest)

    def _rescaling(self, towers: int) -> Division:
        """Division by the last of this many primes."""
        return self._division(self.primes[: towers - 1], self.primes[towers - 1 : towers], self.rows[:towers])

    def _special_rescaling(self, towers: int) -> Division:
        """Division by the special primes and the last of this many primes at once, to the nearest."""
        rows, last = self.basis(towers - 1, True)[1], self.primes[towers - 1 : towers] + self.special
        return self._division(self.primes[: towers - 1], last, rows, nearest=True)

    def _division(self, kept: tuple[int, ...], last: tuple[int, ...], rows: Array, nearest: bool = False) -> Division:
        whole = math.prod(last)
        own = [pow(self.ring_dim * (whole // prime), -1, prime) for prime in last]
        parts = [whole // prime for prime in last] + [-whole] * nearest
        down = np.stack([with_ratio([part] * len(kept), kept) for part in parts])
        inverse = with_ratio([pow(whole, -1, prime) for prime in kept], kept)
        return Division(rows, len(kept), with_ratio(own, last), down, inverse, nearest)

    def imaginary(self, row: int) -> int:
        """The root of -1 that represents i modulo a prime of the chain: psi^(N/2)."""
        prime = self.primes[row]
        return pow(smallest_root(self.ring_dim, prime), self.ring_dim // 2, prime)

    def _automorphism(self, index: int) -> tuple[Array, Array]:
        """The places to which the values move under X -> X^index, and the lanes of a vector from which they come."""
        targets = automorphism_places(self.ring_dim, pow(index, -1, 2 * self.ring_dim))
        lanes = np.empty(self.ring_dim, dtype=np.uint32)
        lanes[targets] = self._lanes
        return targets, lanes
