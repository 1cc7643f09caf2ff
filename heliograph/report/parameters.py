"""All parameters of a program's chains: primes, digits, security, and each evaluation key with its level and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from heliograph.ckks.chains import Chain
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.security import max_log_pq
from heliograph.report.text import bytes_text
from heliograph.texts import number_of


@dataclass(frozen=True, slots=True)
class ChainParameters:
    """A chain, or a lower part of it, which has digits and special primes of its own.

    ring_dim: N.
    levels: its highest level; level l has the first l + 1 primes (twice as many, where each level has two).
    scale_bits: the bits of a level.
    primes, special_primes: the moduli, in order.
    digits: of a key switch at the highest level.
    log_pq: the bits of all primes together; for 128 bits of security at most `most_log_pq`.
    security_bits: 128, or None for tests only.
    bootstrap: the levels of the two transforms of a bootstrap; None if this part has none.
    """

    ring_dim: int
    levels: int
    scale_bits: int
    primes: tuple[int, ...]
    special_primes: tuple[int, ...]
    digits: int
    log_pq: float
    most_log_pq: int
    security_bits: int | None
    bootstrap: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class KeyParameters:
    """An evaluation key: its kind, the amount of a rotation, its highest level, its bytes in memory and as sent."""

    name: str
    kind: str
    amount: int
    level: int
    bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramParameters:
    """The chains, the whole one first, and the keys in the order in which clients make them."""

    chains: tuple[ChainParameters, ...]
    keys: tuple[KeyParameters, ...]

    @staticmethod
    def of(chains: Sequence[Chain], keys: Sequence[EvaluationKey]) -> ProgramParameters:
        rings = [chain.ring for chain in chains]
        return ProgramParameters(
            tuple(
                ChainParameters(
                    ring.ring_dim,
                    ring.levels,
                    ring.scale_bits,
                    ring.primes,
                    ring.special_primes,
                    ring.digits,
                    ring.log_pq,
                    max_log_pq(ring.log_ring, 128),
                    ring.security_bits,
                    ring.bootstrap,
                )
                for ring in rings
            ),
            tuple(
                KeyParameters(key.name, key.kind, key.amount, key.ring.levels, key.bytes, key.sent_bytes)
                for key in keys
            ),
        )

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        lines = []
        for number, chain in enumerate(self.chains):
            security = "INSECURE" if chain.security_bits is None else f"{chain.security_bits} bits of security"
            lines += [
                f"{'part of the chain' if number else 'the chain'}: N = {chain.ring_dim}, "
                f"{number_of(chain.levels, 'level')} of {chain.scale_bits} bits, {number_of(chain.digits, 'digit')}, "
                f"log PQ {chain.log_pq:.1f} of at most {chain.most_log_pq}, {security}",
                f"  {number_of(len(chain.primes), 'prime')}",
                *(f"    {prime} ({prime.bit_length()} bits)" for prime in chain.primes),
                f"  {number_of(len(chain.special_primes), 'special prime')}",
                *(f"    {prime} ({prime.bit_length()} bits)" for prime in chain.special_primes),
            ]
        width = max((len(key.name) for key in self.keys), default=0)
        lines.append(
            f"{number_of(len(self.keys), 'evaluation key')}: {bytes_text(sum(key.bytes for key in self.keys))}, "
            f"{bytes_text(sum(key.sent_bytes for key in self.keys))} as sent"
        )
        for key in self.keys:
            size = f"{bytes_text(key.bytes):>9}, {bytes_text(key.sent_bytes):>9} sent"
            lines.append(f"  {key.name:<{width}}  to level {key.level:>2}  {size}")
        return "\n".join(lines)
