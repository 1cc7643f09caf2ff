"""One secret key for each ring, and what is made with it, for all tests of a process that need any key.

Keys take most of the time of a test with bootstraps. A test that is about making keys, about two clients, or about the
errors of several keys makes a `Client` or a `Cryptor` of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from heliograph.artifact.artifact import Artifact
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.dsl.parse import parse
from heliograph.files import Bytes
from heliograph.ir import Program
from heliograph.ir.text import print_program
from heliograph.runtime.client.client import Client
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.wire.messages import EvaluationKeys

# Without security, as most programs of tests are compiled.
TOY = Options(security_bits=None)
# Of all rings together; those that were used longest ago are dropped.
MOST_BYTES = 150_000_000


class RingKeys:
    """A secret key on a ring, and the bytes of the evaluation keys that were made with it."""

    def __init__(self, ring: Ring) -> None:
        self.cryptor = Cryptor(ring)
        self.bytes = 0
        self._made: dict[tuple[Ring, str, int], Bytes] = {}

    def key_bytes(self, key: EvaluationKey) -> Bytes:
        what = key.ring, key.kind, key.amount
        if what not in self._made:
            self._made[what] = self.cryptor.evaluation_key_bytes(key)
            self.bytes += len(self._made[what])
        return self._made[what]


_rings: dict[Ring, RingKeys] = {}


def ring_keys(ring: Ring) -> RingKeys:
    """The keys on a ring, the same in each call."""
    found = _rings.pop(ring, None) or RingKeys(ring)
    while _rings and sum(keys.bytes for keys in _rings.values()) + found.bytes > MOST_BYTES:
        del _rings[next(iter(_rings))]
    _rings[ring] = found
    return found


class Keyed(NamedTuple):
    """A compiled program, a client of it, and the client's evaluation keys in a message of the caller's own."""

    artifact: Artifact
    client: Client
    keys: EvaluationKeys


_artifacts: dict[tuple[str, str], Artifact] = {}


def compiled(program: str | Program, options: Options = TOY) -> Artifact:
    """The program, or the one of this text, compiled once with these options."""
    what = program if isinstance(program, str) else print_program(program), repr(options)
    if what not in _artifacts:
        _artifacts[what] = compile_program(parse(program) if isinstance(program, str) else program, options)
    return _artifacts[what]


def keyed(program: str | Program | Artifact, options: Options = TOY) -> Keyed:
    """A client and keys for an artifact, or for a program that is compiled once with these options."""
    artifact = program if isinstance(program, Artifact) else compiled(program, options)
    made = ring_keys(artifact.ring)
    client = Client(artifact, allow_insecure=True, cryptor=made.cryptor)
    blobs = {key.name: made.key_bytes(key) for key in artifact.evaluation_keys}
    return Keyed(artifact, client, EvaluationKeys(artifact.fingerprint, client.id, blobs))


def cache_clear() -> None:
    """Forget all that is kept here (helpers/workers.py)."""
    _rings.clear()
    _artifacts.clear()
