"""A backend with the keys of a ring, and the exact numbers for comparison: the basis of all checks of backends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.ckks.chains import Chain
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.dsl import parse
from heliograph.errors import HeliographError
from heliograph.execution.loop import execute
from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES
from heliograph.files import Bytes
from heliograph.ir import Array, Builder, Program, Stage
from heliograph.ir.bootstraps.writer import write_bootstrap
from heliograph.ir.interface import Interface, TensorSpec
from heliograph.ir.location import UNKNOWN
from heliograph.ir.maps.layout import Layout
from heliograph.ir.maps.steps import rotation_steps
from heliograph.report.text import Report
from heliograph.runtime.backend import Backend, ServerEvaluator
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.wire.forms import SPARSE_BLOCKS, key_form, sparse_primes, write_ciphertext
from heliograph.runtime.wire.messages import EncryptedInput, EvaluationKeys, object_name
from heliograph.testing.reference import Exact
from heliograph.testing.rings import lower_part, name_of

# Makes a backend of an artifact and a client's keys (runtime/backend.py).
Maker = Callable[[Artifact, EvaluationKeys], Backend]
# The rotation amounts with a key in the whole chain; the lower part has a key for the first.
AMOUNTS = (1, 5)
# The slots of bootstraps, of one value and of a pair.
BOOTSTRAPPED, PAIRED = 64, 16


@dataclass(frozen=True)
class Check:
    """One property that must hold on a ring: `run` raises an AssertionError if it does not."""

    ring: str
    name: str
    run: Callable[[], None]


@functools.cache
def _report() -> Report:
    """A dummy report: an artifact needs one, but backends do not read it."""
    source = "program tried\ninput x: secret slots[8] in [-1, 1]\noutput y = x * x\n"
    return compile_program(parse(source), Options(security_bits=None)).report


def _program(ring: Ring) -> Program:
    """An input at each level, and one op for each kind of key."""
    builder = Builder("tried", Stage.EXECUTABLE)
    builder.set_ring(ring)
    names = [f"x{level}" for level in range(ring.towers)]
    chains = [Chain(ring, AMOUNTS, True)]
    scale = float(ring.scale_bits)
    inputs = [
        builder.input(name, slots=ring.slots, chunk=0, level=level, log_scale=scale) for level, name in enumerate(names)
    ]
    outputs = [*inputs, builder.op("conjugate", (inputs[-1],))]
    if ring.bootstrap is None:
        chains.append(Chain(lower_part(ring), AMOUNTS[:1], True))
    else:
        chains = list(refreshing(ring, paired=True).planned.chains)
        x = inputs[ring.bootstrap_input_level]
        outputs.append(write_bootstrap(builder, ring, x, BOOTSTRAPPED, False, UNKNOWN))
    builder.parameters = Parameters(tuple(chains))
    layout = Layout((ring.slots,), ring.slots, ring.slots)
    inward, outward = (
        tuple(TensorSpec(f"{kind}{i}", (ring.slots,), layout) for i in range(count))
        for kind, count in (("x", len(names)), ("y", len(outputs)))
    )
    builder.interface = Interface(inward, outward)
    return builder.finish(outputs)


@functools.lru_cache(maxsize=4)
def refreshing(ring: Ring, paired: bool) -> Program:
    """A bootstrap in the ring, of one value or of two, with the keys of both."""
    made = []
    for slots, kept in ((BOOTSTRAPPED, False), (PAIRED, True)):
        builder = Builder("bootstrap", Stage.EXECUTABLE)
        builder.set_ring(ring)
        level, scale = ring.bootstrap_input_level, float(ring.scale_bits)
        x = builder.input("x", slots=ring.slots, chunk=0, level=level, log_scale=scale)
        made.append(builder.finish([write_bootstrap(builder, ring, x, slots, kept, UNKNOWN)]))
    amounts = {step % ring.slots for program in made for node in program.nodes for step in rotation_steps(node)}
    keys = tuple(sorted({*amounts, *AMOUNTS} - {0}))
    return replace(made[paired], parameters=Parameters((Chain(ring, keys, True),)))


class Material:
    """A client's keys on a ring, in wire form and as exact residues, and test residues; shared by all backends."""

    def __init__(self, ring: Ring) -> None:
        self.ring, self.cryptor = ring, Cryptor(ring)
        self.artifact = Artifact(_program(ring), _report(), {})
        self.keys = self.artifact.evaluation_keys
        blobs: dict[str, Bytes] = {key.name: self.cryptor.evaluation_key_bytes(key) for key in self.keys}
        self.sent = EvaluationKeys(self.artifact.fingerprint, self.cryptor.tag, blobs)
        self.nodes = {node.attrs["level"]: node for node in self.artifact.program.inputs}
        self.exact = [self._exact(chain.ring) for chain in self.artifact.program.planned.chains]
        self._results: dict[Any, Array] = {}

    def _exact(self, ring: Ring) -> Exact:
        found: dict[tuple[str, int], Array] = {}
        for key in self.keys:
            if key.ring == ring:
                found |= key_halves(key, self.sent.blobs[key.name], self.cryptor.tag)
        sparse = sparse_primes(ring) if ring.bootstrap else ()
        return Exact(ring, lambda kind, amount: found[kind, amount], ring.special_primes, sparse)

    def residues(self, level: int, kind: str, parts: int = 2) -> Array:
        """Residues (parts, level + 1, N) in 64 bits: a `kind` in `EXTREMES`, or random ones seeded by this word."""
        primes = np.array(self.ring.primes[: level + 1], dtype=np.uint64)[:, np.newaxis]
        shape = (parts, level + 1, self.ring.ring_dim)
        if kind in EXTREMES:
            return np.broadcast_to(EXTREMES[kind](primes), shape).copy()
        return np.random.default_rng([level, *kind.encode()]).integers(primes, size=shape, dtype=np.uint64)

    def encrypted(self, residues: Array) -> bytes:
        """The bytes of a two-part ciphertext with these residues."""
        return write_ciphertext(residues, self.ring, self.cryptor.tag)

    def known(self, key: Any, make: Callable[[], Array]) -> Array:
        """An exact result, computed once per key, or every time if the key is None."""
        if key is None:
            return make()
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]


# Extreme residues, as functions of the primes.
EXTREMES: Mapping[str, Callable[[Array], Array]] = {
    "zeros": lambda q: q - q,
    "ones": lambda q: q // q,
    "halves": lambda q: q // np.uint64(2),
    "tops": lambda q: q - np.uint64(1),
}


def key_halves(key: EvaluationKey, data: Any, tag: str) -> dict[tuple[str, int], Array]:
    """The residues of a key, (2, digits, primes, N), by kind and amount; two entries for the pair of bootstrapping."""
    form = key_form(key)
    rows = np.empty((len(form.moduli), form.ring_dim), dtype=np.uint64)
    form.read(data, tag, key.name, list(rows))

    def shaped(some: Array, digits: int) -> Array:
        # The uniform half is written first.
        return some.reshape(2, digits, -1, form.ring_dim)[::-1]

    if key.kind == "encapsulation":
        return {
            ("there", 0): shaped(rows[:SPARSE_BLOCKS], 1),
            ("back", 0): shaped(rows[SPARSE_BLOCKS:], key.ring.digits),
        }
    return {(key.kind, key.amount): shaped(rows, key.ring.digits)}


@functools.lru_cache(maxsize=2)
def material(ring: Ring) -> Material:
    """The material of a ring, cached for the last two rings."""
    return Material(ring)


class Bench:
    """One backend with the keys of a ring. `do(chain)` gives its primitives in the whole chain or the lower part."""

    def __init__(self, make: Maker, ring: Ring) -> None:
        self.material = material(ring)
        self.ring = ring
        # A ciphertext with some residues, and the plaintexts of a level with their residues, created once.
        self.operand = functools.cache(lambda level, kind: self.given(self.material.residues(level, kind)))
        self.plaintexts = functools.cache(self._plaintexts)
        self.backend = make(self.material.artifact, self.material.sent)
        try:
            self.evaluator: ServerEvaluator = self.backend.evaluator(
                self.material.artifact.program, PLAINTEXT_CACHE_BYTES
            )
            self.do = self.evaluator.part
            self.evaluator.prepare()
        except BaseException:
            self.backend.release()
            raise

    def read(self, data: bytes, level: int) -> Any:
        """The backend's ciphertext in a client's bytes."""
        node, name = self.material.nodes[level], object_name(f"x{level}", 0)
        sent = EncryptedInput(self.material.artifact.fingerprint, self.material.cryptor.tag, {name: data})
        return self.backend.read(sent, node, name)

    def given(self, residues: Array) -> Any:
        """The backend's ciphertext with these residues (2, level + 1, N)."""
        return self.read(self.material.encrypted(residues), residues.shape[1] - 1)

    def refreshed(self, x: Any, paired: bool) -> Any:
        """The ciphertext after a bootstrap of `BOOTSTRAPPED` slots, or of a pair of `PAIRED` slots."""
        program = refreshing(self.ring, paired)
        evaluator = self.backend.evaluator(program, PLAINTEXT_CACHE_BYTES)
        evaluator.prepare()
        with self.backend.using():
            (made,), _ = execute(program, evaluator, {program.inputs[0]: x})
        return made

    def residues(self, x: Any) -> Array:
        """The residues of the backend's ciphertext."""
        found = np.asarray(self.evaluator.residues(x))
        assert found.dtype == np.uint64, f"residues are of {found.dtype}, not of 64 bits without a sign"
        return found

    def constant(self, level: int, number: int) -> Array:
        """The residues of an error-free ciphertext of a small constant, `number` in all values."""
        found = np.zeros((2, level + 1, self.ring.ring_dim), dtype=np.uint64)
        found[0] = number
        return found

    def _plaintexts(self, level: int) -> tuple[list[Any], list[Array]]:
        """The backend's plaintexts of `vectors`, and their residues (level + 1, N), by products with ones."""
        scale, one, do = float(min(self.ring.scale_bits, 40)), self.given(self.constant(level, 1)), self.do(0)
        plains = [do.encode(values, scale, level) for values in vectors(self.ring)]
        return plains, [self.residues(do.mul_plain(one, plain))[0].astype(object) for plain in plains]

    def refusal(self, what: str, call: Callable[[], Any], kind: type[HeliographError] = HeliographError) -> Any:
        """None if the backend refuses a call, otherwise the call's result.

        A refusal is one of our errors of class `kind` or, if any of our errors will do, a known error of the backend's
        library. Any other error leads to an AssertionError.
        """
        try:
            return call()
        except kind:
            return None
        except Exception as error:
            if kind is HeliographError and self.evaluator.refusal(error) is not None:
                return None
            raise AssertionError(f"{what} on {name_of(self.ring)}: {error!r} is no refusal") from error


def vectors(ring: Ring) -> list[Array]:
    """The test vectors for encoding: a value for each slot, a few that repeat, a few complex ones."""
    random = np.random.default_rng(5)
    few = random.normal(size=8)
    return [random.normal(size=ring.slots), few, few + 1j * random.normal(size=8)]


class Benches:
    """The benches of one backend, one at a time."""

    def __init__(self, make: Maker) -> None:
        self._make = make
        self._open: Bench | None = None

    def of(self, ring: Ring) -> Bench:
        """The bench of a ring; the previous bench is closed."""
        if self._open is None or self._open.ring != ring:
            if self._open is not None:
                self._open.backend.release()
                self._open = None
            self._open = Bench(self._make, ring)
        return self._open

    def checks(self, ring: Ring, calls: Mapping[str, Callable[[Bench], None]]) -> Iterator[Check]:
        """The named checks on the bench of a ring."""
        for name, call in calls.items():
            yield Check(name_of(ring), name, functools.partial(self._run, ring, call))

    def _run(self, ring: Ring, call: Callable[[Bench], None]) -> None:
        call(self.of(ring))


def compare(what: str, found: Array, expected: Array) -> None:
    """Raise an AssertionError, with the place, unless residues equal the expected ones to the last bit."""
    assert found.shape == expected.shape, f"{what}: expected the shape {expected.shape}, found {found.shape}"
    apart = np.argwhere(found != expected)
    if len(apart):
        first = tuple(map(int, apart[0]))
        raise AssertionError(
            f"{what}: {len(apart)} of {found.size} residues differ; in part, prime and place {first} "
            f"expected {int(expected[first])}, found {int(found[first])}"
        )
