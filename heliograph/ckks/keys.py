"""Evaluation keys by name: a client generates them, and a server needs them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from heliograph.ckks.chains import Chain
from heliograph.ckks.primes import WORD_BYTES, words
from heliograph.ckks.ring import SPARSE_SPECIAL_BITS, Ring


@dataclass(frozen=True, slots=True)
class EvaluationKey:
    """One evaluation key.

    `name`: its name in messages.
    `ring`: the ring of its chain.
    `kind`: "rotation" (by `amount`), "relinearization", "conjugation", or "encapsulation", the pair of keys that switch
    to bootstrapping's sparse secret and back.
    """

    name: str
    ring: Ring
    kind: str
    amount: int = 0

    @property
    def index(self) -> int:
        """The automorphism of a rotation or the conjugation: X -> X^index."""
        n = self.ring.ring_dim
        return rotation_index(n, self.amount) if self.kind == "rotation" else conjugation_index(n)

    @property
    def bytes(self) -> int:
        """Its size in memory, by its coefficients."""
        if self.kind != "encapsulation":
            return self.ring.rotation_key_bytes
        # The key to the sparse secret: two polynomials over the first prime and two special ones of two words each.
        sparse = 2 * (words(self.ring.primes[:1]) + 4)
        return self.ring.rotation_key_bytes + sparse * self.ring.ring_dim * WORD_BYTES

    @property
    def sent_bytes(self) -> int:
        """Its size in messages and files, by its coefficients; its file has some hundred bytes more."""
        made = self.ring.sent_key_bytes
        if self.kind != "encapsulation":
            return made
        # It has no seed: half of it would have to be computed again from the sparse secret, and nobody keeps that. Its
        # primes are the first of the chain and two of its own.
        bits = 2 * (self.ring.primes[0].bit_length() + 2 * SPARSE_SPECIAL_BITS)
        return made + bits * self.ring.ring_dim // 8


def rotation_index(ring_dim: int, amount: int) -> int:
    """The automorphism X -> X^index that rotates the slots."""
    return pow(5, amount, 2 * ring_dim)


def conjugation_index(ring_dim: int) -> int:
    """The automorphism that conjugates every slot."""
    return 2 * ring_dim - 1


def evaluation_keys(
    chains: Sequence[Chain], conjugation: bool = False, raising: Collection[int] = ()
) -> tuple[EvaluationKey, ...]:
    """The keys of these chains (see `Parameters.chains`), and with `conjugation` its key in the whole chain.

    `raising` are the numbers of the chains to whose top bootstraps raise the modulus: these also have the pair for the
    sparse secret and the conjugation key.
    """
    made: list[EvaluationKey] = []
    for number, chain in enumerate(chains):
        prefix = f"chain{chain.ring.levels}/" if number else ""
        amounts = sorted(set(chain.rotation_keys))
        made += (EvaluationKey(f"{prefix}rotation/{a}", chain.ring, "rotation", a) for a in amounts)
        if chain.relinearization_key:
            made.append(EvaluationKey(f"{prefix}relinearization", chain.ring, "relinearization"))
        if number in raising or (conjugation and not number):
            made.append(EvaluationKey(f"{prefix}conjugation", chain.ring, "conjugation"))
        if number in raising:
            made.append(EvaluationKey(f"{prefix}bootstrap/encapsulation", chain.ring, "encapsulation"))
    return tuple(made)
