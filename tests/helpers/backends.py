"""Run an executable program on a backend; the same words for the simulator, for OpenFHE and for our kernels."""

from __future__ import annotations

import gc
import secrets
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers.keyed import RingKeys, ring_keys

from heliograph.ckks.ring import Ring
from heliograph.execution.interface import pack_inputs, unpack_outputs
from heliograph.execution.keys import program_keys
from heliograph.execution.loop import execute
from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES
from heliograph.execution.protocol import Call
from heliograph.execution.simulator import Simulator
from heliograph.ir import Array, Node, Program
from heliograph.runtime.backend import ServerEvaluator
from heliograph.runtime.client.cryptor.cryptor import Cryptor

# Of the keys of a program.
LARGE_BYTES = 100_000_000


@dataclass(slots=True)
class Session:
    """One backend with one secret key: `encrypt(vector, level, log_scale)`, `decrypt(value, log_scale)`, `evaluator`."""

    evaluator: Any
    encrypt: Callable[[Array, int, float], Any]
    decrypt: Callable[[Any, float], Array]


def simulator(program: Program, seed: int = 0, noisy: bool = True) -> Session:
    made = Simulator(program, seed=seed, noisy=noisy)
    return Session(made, made.encrypt, lambda value, log_scale: made.decrypt(value))


def openfhe(program: Program, seed: int = 0, without: Sequence[int] = (), keys: RingKeys | None = None) -> Session:
    """OpenFHE with the program's own rotation keys, less those in `without`; OpenFHE tells clients apart by key tag.

    `keys` are those of the ring that all tests share, unless others are given.
    """
    pytest.importorskip("openfhe")
    from heliograph.runtime.native.ciphertext import read_key as native_key
    from heliograph.runtime.openfhe import registry, serial
    from heliograph.runtime.openfhe.backend import _raising
    from heliograph.runtime.openfhe.evaluator import OpenFHEEvaluator
    from heliograph.runtime.openfhe.tags import chain_tag

    ring, tag = program.ring, secrets.token_hex(16)
    sparse: dict[Ring, Any] = {}
    if sum(key.bytes for key in program_keys(program)) > LARGE_BYTES:
        # Evaluators refer to themselves: those that nobody has any more are still there, with their keys.
        gc.collect()
    keys = keys or ring_keys(ring)
    cryptor, evaluator = keys.cryptor, OpenFHEEvaluator(program, tag, raising=_raising(program, sparse))
    for key in program_keys(program):
        data = keys.key_bytes(key)
        if key.kind == "encapsulation":
            sparse[key.ring] = native_key(data, key, cryptor.tag)
        elif key.kind != "rotation" or key.amount not in without:
            serial.install_key(key, serial.read_key(data, key, cryptor.tag), chain_tag(tag, ring, key.ring))
    for chain in program.planned.chains:
        weakref.finalize(evaluator, registry.release, chain_tag(tag, ring, chain.ring))
    evaluator.prepare()

    def encrypt(vector: Array, level: int, log_scale: float) -> Any:
        data = cryptor.encrypted_bytes(vector, level, log_scale)
        return serial.retagged(serial.read_ciphertext(data, ring, level, cryptor.tag, "it"), tag)

    return Session(evaluator, encrypt, lambda value, log_scale: _decrypted(cryptor, evaluator, value, log_scale))


def native(program: Program, seed: int = 0, without: Sequence[int] = (), keys: RingKeys | None = None) -> Session:
    """The same on our own kernels."""
    pytest.importorskip("numba")
    from heliograph.runtime.native.backend import KeyTable, NativeEvaluator, place_of, tables_of
    from heliograph.runtime.native.ciphertext import read_ciphertext, read_key

    ring, table, keys = program.ring, KeyTable(), keys or ring_keys(program.ring)
    cryptor = keys.cryptor
    for key in program_keys(program):
        if key.kind != "rotation" or key.amount not in without:
            table[place_of(key)] = read_key(keys.key_bytes(key), key, cryptor.tag)
    evaluator = NativeEvaluator(program, tables_of(program), table, {}, PLAINTEXT_CACHE_BYTES)
    evaluator.prepare()

    def encrypt(vector: Array, level: int, log_scale: float) -> Any:
        return read_ciphertext(cryptor.encrypted_bytes(vector, level, log_scale), ring, level, cryptor.tag, "it")

    return Session(evaluator, encrypt, lambda value, log_scale: _decrypted(cryptor, evaluator, value, log_scale))


def _decrypted(cryptor: Cryptor, evaluator: ServerEvaluator, value: Any, log_scale: float) -> Array:
    return cryptor.decrypted(evaluator.residues(value), log_scale)[0]


BACKENDS: dict[str, Callable[..., Session]] = {"simulator": simulator, "openfhe": openfhe, "native": native}


def run(
    program: Program,
    samples: Sequence[Any],
    session: Session,
    observe: Callable[[Node, Any], None] | None = None,
) -> tuple[list[Array], Counter[Call]]:
    """The decrypted output tensors and the calls of one evaluation."""
    inputs = {
        node: session.encrypt(vector[0], node.attrs["level"], node.attrs["log_scale"]) if node.type.secret else vector
        for node, vector in pack_inputs(program, samples).items()
    }
    results, trace = execute(program, session.evaluator, inputs, observe=observe)
    vectors = [
        session.decrypt(result, node.type.log_scale)  # type: ignore[union-attr]
        for result, node in zip(results, program.outputs, strict=True)
    ]
    return [np.asarray(out) for out in unpack_outputs(program, vectors)], trace.calls


def largest_difference(left: Sequence[Array], right: Sequence[Array]) -> float:
    """Over all tensors; shapes must agree."""
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        assert a.shape == b.shape
        worst = max(worst, float(np.abs(a - b).max(initial=0.0)))
    return worst
