"""Rings at the edges: the special primes and the security that we plan with are those that OpenFHE arrives at."""

from __future__ import annotations

import pytest

from heliograph.ckks.ring import Ring
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
    assert ring.rotation_key_bytes <= template.size <= 1.2 * ring.rotation_key_bytes


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
