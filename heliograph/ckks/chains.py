"""The modulus chain and its lower parts, each with evaluation keys of its own.

A key is as large as the chain that it was made in, whatever the level of the ciphertext that it is used on. Where many
rotations happen at low levels only, keys made in the lower part of the chain take a tenth of the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.ckks.ring import Ring


@dataclass(frozen=True, slots=True)
class Chain:
    """A part of the modulus chain (all of it, or the primes up to a level) and the keys that are made in it."""

    ring: Ring
    rotation_keys: tuple[int, ...]
    relinearization_key: bool

    @property
    def keys(self) -> int:
        return len(self.rotation_keys) + int(self.relinearization_key)

    @property
    def key_bytes(self) -> int:
        return self.keys * self.ring.rotation_key_bytes


def key_chains(metadata: Mapping[str, Any]) -> tuple[Chain, ...]:
    """The chains of a compiled program, the whole one first, then lower and lower ones.

    The metadata have the keys of the whole chain in `rotation_keys` and `relinearization_key`, and those of lower parts in
    `chains`, a list of {"level", "digits", "rotation_keys", "relinearization_key"} with falling levels.
    """
    ring = Ring.from_json(metadata["ring"])
    whole = Chain(ring, tuple(metadata["rotation_keys"]), bool(metadata["relinearization_key"]))
    lower = (
        Chain(
            ring.lower(entry["level"], entry["digits"]),
            tuple(entry["rotation_keys"]),
            bool(entry["relinearization_key"]),
        )
        for entry in metadata.get("chains", ())
    )
    return whole, *lower


def chain_at(chains: Sequence[Chain], level: int) -> Chain:
    """The chain in which a ciphertext of that level is worked on: the lowest that holds it."""
    return next(chain for chain in reversed(chains) if chain.ring.levels >= level)
