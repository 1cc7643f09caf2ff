"""Forged keys, inputs and outputs: bits flipped in files whose digests fit again."""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable

from runtime.support import sample, toy_artifact

from heliograph.errors import HeliographError
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput, EvaluationKeys


@functools.cache
def _client() -> Client:
    return Client(toy_artifact().public(), allow_insecure=True)


@functools.cache
def _server() -> Server:
    return Server(toy_artifact(), _client().evaluation_keys(), allow_insecure=True)


@functools.cache
def _sound(kind: str) -> bytes:
    if kind == "keys":
        return _client().evaluation_keys().to_bytes()
    encrypted = _client().encrypt(sample())
    return encrypted.to_bytes() if kind == "inputs" else _server().run(encrypted).to_bytes()


def forged(kind: str) -> Callable[[random.Random], bytes]:
    """A maker of forged messages; half of the flips are near the start, where lengths and identifiers stand."""

    def make(rng: random.Random) -> bytes:
        data = bytearray(_sound(kind)[:-32])
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(20, 800) if rng.random() < 0.5 else rng.randrange(20, len(data))
            data[place] ^= 1 << rng.randrange(8)
        return bytes(data) + hashlib.sha256(data).digest()

    return make


def _use_keys(data: bytes) -> None:
    Server(toy_artifact(), EvaluationKeys.from_bytes(data), allow_insecure=True).close()


def _use_inputs(data: bytes) -> None:
    _server().run(EncryptedInput.from_bytes(data))


def _use_outputs(data: bytes) -> None:
    _client().decrypt(EncryptedOutput.from_bytes(data))


_USES = {"keys": _use_keys, "inputs": _use_inputs, "outputs": _use_outputs}


def attempt(kind: str) -> Callable[[bytes], int]:
    """Uses a message: the length of the refusal, 0 where it was usable."""

    def use(data: bytes) -> int:
        try:
            _USES[kind](data)
        except HeliographError as error:
            return len(str(error))
        return 0

    return use
