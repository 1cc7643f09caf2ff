"""The modulus chain and its sub-chains, each with its own evaluation keys.

A key is as large as its chain, whatever the level of the ciphertext on which it is used. Where many rotations happen
only at low levels, the keys of a sub-chain take a tenth of the memory. The cost of a bootstrap depends on the chain to
whose top it raises the modulus: values that return to few levels do it in a sub-chain.
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
    """A part of the modulus chain (all of it, or the primes up to a level), with its keys."""

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
    """A sub-chain in the form of texts and files: its own numbers only, because the whole chain stands beside it.

    `level`, `digits`: its highest level, and its digits.
    `rotation_keys`, `relinearization_key`: its keys.
    `bootstraps`: whether it bootstraps, with the level budgets of the whole chain.
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
        """The sub-chain as a `Chain`, given the whole chain's ring; a ProgramError if only the sub-chain bootstraps."""
        ring = whole.lower(self.level, self.digits, self.bootstraps)
        return Chain(ring, self.rotation_keys, self.relinearization_key)


def chain_at(chains: Sequence[Chain], level: int) -> Chain:
    """The chain for operations at that level: the lowest that holds it."""
    return next(chain for chain in reversed(chains) if chain.ring.levels >= level)


def bootstrap_chain(rings: Sequence[Ring], level: int) -> int:
    """The number of the ring in which a bootstrap that returns to that level happens: the lowest one that bootstraps
    and reaches it. The whole chain is the first.
    """
    reaching = (i for i, ring in enumerate(rings) if ring.bootstrap is not None and ring.bootstrap_level >= level)
    return max(reaching, default=0)
