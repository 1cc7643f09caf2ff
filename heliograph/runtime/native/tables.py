"""Tables of a chain for the kernels: its primes, their transforms, the constants of its changes of basis."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime.native.kernels.transforms import barrett_ratio, prime_tables, ratio_of
from heliograph.runtime.native.shared import Shared
from heliograph.runtime.residues import automorphism_places, smallest_root


@dataclass(frozen=True, eq=False)
class Primes:
    """Primes and the tables of their transforms, one row each. `moduli` are (n, 3): prime, bits, Barrett's ratio.

    Megabytes at full size: shared while in use, which needs weak references to it.
    """

    primes: tuple[int, ...]
    moduli: Array
    outer: Array
    inner: Array
    last: Array

    def rows(self, primes: Sequence[int]) -> Array:
        """The rows of some of the primes."""
        return np.array([self.primes.index(prime) for prime in primes], dtype=np.int64)


_PRIMES: Shared[Primes] = Shared()


def prime_rows(ring_dim: int, primes: tuple[int, ...]) -> Primes:
    """The tables of these primes, in their order."""
    return _PRIMES.get((ring_dim, primes), lambda: _prime_rows(ring_dim, primes))


def _prime_rows(ring_dim: int, primes: tuple[int, ...]) -> Primes:
    tables = [prime_tables(ring_dim, prime) for prime in primes]
    moduli = np.array([(p, p.bit_length(), barrett_ratio(p)) for p in primes], dtype=np.uint64)
    return Primes(
        primes,
        moduli,
        np.stack([table.outer for table in tables]),
        np.stack([table.inner for table in tables]),
        np.stack([table.last for table in tables]),
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
    """Constants for dividing a polynomial by the product of its last primes: the special primes, or a level's last.

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
    """The constants of one chain of primes in digits of `alpha`; `known` has the tables of all primes in use.

    Key switches are rounded to the `nearest` (`Ring.rounds_to_nearest`), or as OpenFHE rounds them: on average down by
    half the number of special primes, which adds up in low-frequency slots.
    """

    def __init__(
        self,
        ring_dim: int,
        primes: tuple[int, ...],
        alpha: int,
        special: tuple[int, ...],
        known: Primes,
        nearest: bool = False,
    ) -> None:
        self.nearest = nearest
        self.ring_dim, self.primes, self.alpha, self.special, self.known = ring_dim, primes, alpha, special, known
        self.rows = known.rows(primes)
        self.special_rows = known.rows(special)
        # Cached on this object: a cache on the class would keep every chain that ever existed.
        self.digits = functools.cache(self._digits)
        self.special_division = functools.cache(self._special_division)
        self.rescaling = functools.cache(self._rescaling)
        self.lift = functools.cache(self._lift)

    @staticmethod
    def of(ring: Ring, special: tuple[int, ...], known: Primes, primes: tuple[int, ...] | None = None) -> ChainTables:
        """The tables of a ring, or of a companion chain with fewer `primes`, each of which is a digit."""
        alpha = ring.alpha if primes is None else 1
        return ChainTables(ring.ring_dim, primes or ring.primes, alpha, special, known, ring.rounds_to_nearest)

    @property
    def slots(self) -> int:
        return self.ring_dim // 2

    def basis(self, level: int, wide: bool) -> tuple[tuple[int, ...], Array]:
        """The primes of a level and their rows, followed by the special primes if `wide`."""
        primes, rows = self.primes[: level + 1], self.rows[: level + 1]
        return (primes + self.special, np.concatenate([rows, self.special_rows])) if wide else (primes, rows)

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

    def automorphism(self, index: int) -> Array:
        """The source place of each value under X -> X^index in evaluation form."""
        return automorphism_places(self.ring_dim, index)
