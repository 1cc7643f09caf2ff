"""The modulus chain and its lower parts, each with evaluation keys of its own.

A key is as large as the chain that it was made in, whatever the level of the ciphertext that it is used on. Where many
rotations happen at low levels only, keys made in the lower part of the chain take a tenth of the memory. A bootstrap
costs what the chain asks for that it raises the modulus to: values that return to few levels do it in a lower part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from heliograph.ckks.ring import MOST_LEVELS, Ring
from heliograph.records import bounds

# At most this many chains bootstrap, because each has its own keys and tables.
MOST_CHAINS = 3


@dataclass(frozen=True, slots=True)
class Chain:
    """A part of the modulus chain (all of it, or the primes up to a level) and the keys that are made in it."""

    ring: Ring
    rotation_keys: tuple[int, ...] = field(default=(), metadata=bounds(1))
    relinearization_key: bool = False

    @property
    def keys(self) -> int:
        return len(self.rotation_keys) + int(self.relinearization_key)

    @property
    def key_bytes(self) -> int:
        return self.keys * self.ring.rotation_key_bytes


@dataclass(frozen=True, slots=True)
class LowerPart:
    """A lower part of a chain as texts and files have it: its own numbers only, for the whole chain is told beside it.

    Where it `bootstraps` it does so with the level budgets of the whole chain.
    """

    level: int = field(metadata=bounds(1, MOST_LEVELS))
    digits: int = field(metadata=bounds(1, MOST_LEVELS + 1))
    rotation_keys: tuple[int, ...] = field(default=(), metadata=bounds(1))
    relinearization_key: bool = False
    bootstraps: bool = field(default=False, metadata=bounds(optional=True))

    @staticmethod
    def of(chain: Chain) -> LowerPart:
        ring = chain.ring
        return LowerPart(
            ring.levels, ring.digits, chain.rotation_keys, chain.relinearization_key, ring.bootstrap is not None
        )

    def under(self, whole: Ring) -> Chain:
        """The chain that this is, of the ring of the whole one; a ProgramError where only this one bootstraps."""
        ring = whole.lower(self.level, self.digits, self.bootstraps)
        return Chain(ring, self.rotation_keys, self.relinearization_key)


def chain_at(chains: Sequence[Chain], level: int) -> Chain:
    """The chain in which a ciphertext of that level is worked on: the lowest that holds it."""
    return next(chain for chain in reversed(chains) if chain.ring.levels >= level)


def bootstrap_chain(rings: Sequence[Ring], level: int) -> int:
    """Which of these rings of chains, the whole one first, a bootstrap that returns to that level happens in: the lowest
    that bootstraps and reaches it.
    """
    reaching = (i for i, ring in enumerate(rings) if ring.bootstrap is not None and ring.bootstrap_level >= level)
    return max(reaching, default=0)
