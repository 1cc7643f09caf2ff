"""The modulus chain and its lower parts, each with evaluation keys of its own.

A key is as large as the chain that it was made in, whatever the level of the ciphertext that it is used on. Where many
rotations happen at low levels only, keys made in the lower part of the chain take a tenth of the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.ckks.ring import Ring


@dataclass(frozen=True, slots=True)
class Chain:
    """A part of the modulus chain (all of it, or the primes up to a level) and the keys that are made in it."""

    ring: Ring
    rotation_keys: tuple[int, ...] = ()
    relinearization_key: bool = False

    @property
    def keys(self) -> int:
        return len(self.rotation_keys) + int(self.relinearization_key)

    @property
    def key_bytes(self) -> int:
        return self.keys * self.ring.rotation_key_bytes


def chain_at(chains: Sequence[Chain], level: int) -> Chain:
    """The chain in which a ciphertext of that level is worked on: the lowest that holds it."""
    return next(chain for chain in reversed(chains) if chain.ring.levels >= level)
