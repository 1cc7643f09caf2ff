"""Rings at the edges: the special primes and the security that we plan with are those that OpenFHE arrives at."""

from __future__ import annotations

import math

import pytest

from heliograph.ckks.ring import SPARSE_SPECIAL_BITS, Ring
from heliograph.runtime.openfhe.context import make_context
from heliograph.runtime.openfhe.template import rotation_key_template


@pytest.mark.parametrize(
    ("first", "scale", "levels", "digits"),
    [
        *((first, 25, 5, 3) for first in (30, 31, 32, 34, 35)),  # digits of 55 to 60 bits
        *((first, 20, 3, 4) for first in (54, 55, 56, 57, 60)),  # one prime a digit
        *((first, 28, 8, 3) for first in (58, 59, 60)),  # digits of 114 to 116 bits
        (53, 21, 7, 2),
    ],
)
def test_special_primes_are_those_of_openfhe(first: int, scale: int, levels: int, digits: int) -> None:
    ring = Ring(10, first, scale, levels, digits, None)
    assert ring.legal
    # The template refuses a key with another number of polynomials than the ring says.
    template = rotation_key_template(ring)
    assert len(template.blocks) == 2 * digits * (ring.towers + ring.special)
    numbers = 2 * ring.digits * (ring.towers + ring.special) * ring.ring_dim
    assert 8 * numbers <= template.size <= 1.2 * 8 * numbers


@pytest.mark.parametrize("first", [36, 38, 45, 60])
@pytest.mark.parametrize(
    ("scale", "levels", "digits"),
    [(25, 5, 3), (32, 11, 2), (36, 8, 1), (24, 3, 4), (36, 11, 2), (49, 7, 3), (28, 20, 5)],
)
def test_short_special_primes_are_those_of_openfhe(first: int, scale: int, levels: int, digits: int) -> None:
    """As many as planned, none longer; together they are longer than every digit by the room that the noise counts on."""
    ring = Ring(10, max(first, scale), scale, levels, digits, None, short_specials=True)
    assert ring.legal
    template = rotation_key_template(ring)
    assert len(template.blocks) == 2 * digits * (ring.towers + ring.special)
    special = template.blocks_moduli[ring.towers : ring.towers + ring.special]
    assert len(special) == ring.special
    assert len({*special, *ring.primes}) == ring.special + ring.towers
    assert max(special).bit_length() <= ring.special_bits <= 49
    digit_primes = [ring.primes[i : i + ring.alpha] for i in range(0, ring.towers, ring.alpha)]
    assert math.prod(special) > max(map(math.prod, digit_primes)) * 2**8
    # None is so short that OpenFHE's key to the sparse secret could have the same.
    assert ring.special_room > 8
    assert ring.special_room <= 9 + ring.special or ring.special_bits == SPARSE_SPECIAL_BITS + 1
    long = Ring(10, max(first, scale), scale, levels, digits, None)
    assert ring.log_pq <= long.log_pq + 8
    # A lower part of the chain has its own.
    lower = ring.lower(levels - 2, 1)
    form = rotation_key_template(lower)
    assert max(form.blocks_moduli[lower.towers : lower.towers + lower.special]).bit_length() <= lower.special_bits


def test_what_counts_as_secure_is_accepted_by_openfhe() -> None:
    secure = refused = 0
    for first in (28, 30, 31, 33, 40, 52, 55, 56):
        for scale in (24, 25, 27):
            for digits in (3, 5):
                ring = Ring(13, first, scale, 4, digits, 128)
                if not ring.legal:
                    continue
                if ring.secure:
                    make_context(ring)
                    secure += 1
                else:
                    refused += 1
    assert secure > 10
    assert refused > 3
