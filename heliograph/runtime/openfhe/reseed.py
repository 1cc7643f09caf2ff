"""The client's half of the small form (runtime/seeded.py): uniform halves replaced by ones that a seed expands to.

OpenFHE makes (b, a) with b + a s = m + e, where a is uniform. With any other a' the pair (b + (a - a') s, a') holds the same
m and the same e; it is what OpenFHE would have made had it drawn a'. In a key of an automorphism the secret that stands
with a is turned by the automorphism's inverse. Nothing of this is loaded by a process that only serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from heliograph.errors import InternalError
from heliograph.ir import Array
from heliograph.runtime.expansion import fresh_seed
from heliograph.runtime.openfhe.template import find_blocks
from heliograph.runtime.residues import (
    Factors,
    automorphism_places,
    backward,
    centered,
    difference,
    forward,
    residues,
    total,
)
from heliograph.runtime.seeded import SeededForm

# Larger than any error that OpenFHE draws, with standard deviation 3.19. Anything else is about the size of a prime.
_LARGEST_ERROR = 1 << 10


class Reseeding:
    """One secret key of a chain, as what coefficients are multiplied by, modulo its primes and the special ones.

    `secret` gives the values of the secret modulo the first primes of the chain, as many as it is asked for.
    """

    def __init__(self, ring_dim: int, primes: tuple[int, ...], secret: Callable[[], list[bytes]]) -> None:
        self._ring_dim, self._primes, self._secret = ring_dim, primes, secret
        self._known: dict[int, Factors] = {}

    def rewritten(self, data: bytes, form_of: Callable[[tuple[int, ...]], SeededForm], tag: str, size: int) -> bytes:
        """What OpenFHE wrote of an object, in the small form, under a seed of its own.

        `form_of` gives the form by the moduli of all polynomials, `size` are the bytes of those that are written. Raises an
        InternalError where the object is not what we know of OpenFHE's.
        """
        blocks = list(find_blocks(data, self._ring_dim))
        form = form_of(tuple(modulus for _, modulus in blocks))
        header = form.header(fresh_seed(), tag)
        if form.size - len(header) != size:
            raise _unknown(f"{len(blocks)} polynomials were found, which are not those of such an object")
        return form.write(header, self._rewritten(data, [begin for begin, _ in blocks], form, header))

    def _rewritten(self, data: bytes, begins: list[int], seeded: SeededForm, header: bytes) -> Iterator[Array]:
        def block(place: int) -> Array:
            return np.frombuffer(data, dtype="<u8", count=self._ring_dim, offset=begins[place])

        places = None
        if seeded.index:
            places = automorphism_places(self._ring_dim, pow(seeded.index, -1, 2 * self._ring_dim))
        uniform_of = {other: place for place, other in seeded.uniform.items()}
        turned: dict[int, Factors] = {}
        drawn, checked = np.empty(self._ring_dim, dtype=np.uint64), False
        for place in seeded.written:
            if place not in uniform_of:
                yield block(place)
                continue
            prime = seeded.moduli[place]
            if prime not in turned:
                factors = self._factors(prime)
                turned[prime] = factors if places is None else factors.taken(places)
            seeded.expand(drawn, header, uniform_of[place])
            change = turned[prime].times(difference(block(uniform_of[place]), drawn, prime))
            made = total(block(place), change, prime)
            if prime not in self._primes and not checked:
                _check(total(made, turned[prime].times(drawn), prime), prime)
                checked = True
            yield made

    def _factors(self, prime: int) -> Factors:
        """The secret modulo one prime, of the chain or a special one."""
        if not self._known:
            blocks = [np.frombuffer(data, dtype="<u8") for data in self._secret()]
            self._known = {q: Factors.of(values, q) for q, values in zip(self._primes, blocks, strict=True)}
        if prime not in self._known:
            first = self._primes[0]
            coefficients = centered(backward(self._known[first].numbers, first), first)
            if np.abs(coefficients).max() > 1:
                raise _unknown("the secret key is not ternary in the order that we know of transforms")
            self._known[prime] = Factors.of(forward(residues(coefficients, prime), prime), prime)
        return self._known[prime]


def _check(values: Array, prime: int) -> None:
    """What a key encrypts is a multiple of the special primes: modulo one of them its error alone is left."""
    if np.abs(centered(backward(values, prime), prime)).max() > _LARGEST_ERROR:
        raise _unknown("with the secret key a key does not decrypt to a small error modulo a special prime")


def _unknown(why: str) -> InternalError:
    return InternalError(
        "OpenFHE makes keys or ciphertexts in an unknown form",
        why=why,
        hint="this version of OpenFHE is not supported; see constraints.txt for the one that is",
    )
