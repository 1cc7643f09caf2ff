"""Untrusted bytes: every message and every place in it, cut, flipped, grown, forged; only WireErrors come out."""

from __future__ import annotations

import contextlib
import hashlib

import numpy as np
import pytest
from helpers.fuzzing import fuzz
from helpers.hostile_messages import attempt, forged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from runtime.support import sample, toy_artifact

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.container import Container, pack
from heliograph.artifact.public import PublicArtifact
from heliograph.errors import RangeError, WireError
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.messages import VERSION, EncryptedInput, EncryptedOutput, EvaluationKeys

_QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def redigested(data: bytes) -> bytes:
    """A forger's version: the digest fits the altered contents."""
    return data[:-32] + hashlib.sha256(data[:-32]).digest()


def flipped(data: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[position % len(data)] ^= 1 << bit
    return bytes(changed)


def _kinds(key_bytes: bytes, input_bytes: bytes, output_bytes: bytes, artifact: Artifact):  # type: ignore[no-untyped-def]
    return (
        (EvaluationKeys.from_bytes, key_bytes),
        (EncryptedInput.from_bytes, input_bytes),
        (EncryptedOutput.from_bytes, output_bytes),
        (Artifact.from_bytes, artifact.to_bytes()),
        (PublicArtifact.from_bytes, artifact.public().to_bytes()),
    )


def test_accidents_are_found_by_length_and_digest(
    key_bytes: bytes, input_bytes: bytes, output_bytes: bytes, artifact: Artifact
) -> None:
    random = np.random.default_rng(0)
    for read, data in _kinds(key_bytes, input_bytes, output_bytes, artifact):
        read(data)
        for cut in (0, 1, 7, 19, 20, 60, len(data) // 2, len(data) - 1):
            with pytest.raises(WireError, match=r"truncated|not a Heliograph file"):
                read(data[:cut])
        with pytest.raises(WireError, match="followed by other data"):
            read(data + b"x")
        for position in random.integers(20, len(data), size=20):
            with pytest.raises(WireError, match="damaged"):
                read(flipped(data, int(position), int(random.integers(8))))


def test_messages_are_not_taken_for_each_other(
    key_bytes: bytes, input_bytes: bytes, output_bytes: bytes, artifact: Artifact
) -> None:
    kinds = _kinds(key_bytes, input_bytes, output_bytes, artifact)
    for i, (read, _) in enumerate(kinds):
        for j, (_, data) in enumerate(kinds):
            if i != j:
                with pytest.raises(WireError, match=r"holds: .*; expected: "):
                    read(data)


def test_a_smaller_bound_can_be_set(input_bytes: bytes) -> None:
    with pytest.raises(WireError, match="at most 1000 are read here"):
        EncryptedInput.from_bytes(input_bytes, max_bytes=1000)


# ---------------------------------------------------------------------------------------------- ciphertexts


@_QUICK
@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
@example(position=230, bit=0)
def test_forged_inputs_never_pass_the_form(server: Server, input_bytes: bytes, position: int, bit: int) -> None:
    """A flipped bit either is refused, or is one of the seed or of a coefficient that stays below its prime: then it is
    evaluated.

    The random request in the header may be any other: it comes back on the output, and a client that asks for it notices.
    """
    forged = redigested(flipped(input_bytes[:-32], position, bit) + bytes(32))
    try:
        message = EncryptedInput.from_bytes(forged)
        output = server.run(message)
    except WireError:
        return
    sent = EncryptedInput.from_bytes(input_bytes)
    if message.request != sent.request:
        with pytest.raises(WireError, match="answer to other inputs"):
            output.check_answers(sent)
        return
    begin = input_bytes.index(bytes(sent.blobs["x/0"]))
    assert position % (len(input_bytes) - 32) - begin >= 45
    assert len(output.to_bytes()) > 0


def test_heads_of_ciphertexts_may_not_be_altered(server: Server, client: Client, output_bytes: bytes) -> None:
    """All bytes before the coefficients but the seed, of fresh and of computed ciphertexts."""
    fresh = client.encrypt(sample()).blobs["x/0"]
    for position in [*range(45), *range(77, 80)]:
        forged = flipped(bytes(fresh), position, 0)
        with pytest.raises(WireError):
            server.run(EncryptedInput(server._fingerprint, server.client, {"x/0": forged}))
    answer = EncryptedOutput.from_bytes(output_bytes)
    for position in range(80):
        forged = flipped(bytes(answer.blobs["0"]), position, 0)
        with pytest.raises(WireError):
            client.decrypt(EncryptedOutput(answer.artifact, answer.client, {"0": forged}, request=answer.request))


def test_ciphertexts_of_other_levels_and_rings_are_refused(artifact: Artifact, client: Client, server: Server) -> None:
    ring = artifact.ring
    lower = client._cryptor.encrypted_bytes(np.zeros(ring.slots), ring.levels - 1, 50.0)
    with pytest.raises(WireError, match="bytes, expected"):
        server.run(EncryptedInput(artifact.fingerprint, client.id, {"x/0": lower}))
    for junk in (b"", b"\x00" * 50, b"\xff" * len(lower), b"\xff" * len(client.encrypt(sample()).blobs["x/0"])):
        with pytest.raises(WireError):
            server.run(EncryptedInput(artifact.fingerprint, client.id, {"x/0": junk}))
    assert toy_artifact().fingerprint == artifact.fingerprint


@_QUICK
@given(position=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_forged_outputs_are_refused_or_decrypt(client: Client, output_bytes: bytes, position: int, bit: int) -> None:
    forged = redigested(flipped(output_bytes[:-32], position, bit) + bytes(32))
    # RangeError: a forged coefficient destroys the message, which OpenFHE sees.
    with contextlib.suppress(WireError, RangeError):
        client.decrypt(EncryptedOutput.from_bytes(forged))


# ---------------------------------------------------------------------------------------------- keys


@_QUICK
@given(position=st.integers(0, 10**9), bit=st.integers(0, 7), edge=st.booleans())
def test_forged_keys_never_pass_the_form(
    artifact: Artifact, key_bytes: bytes, position: int, bit: int, edge: bool
) -> None:
    """`edge` aims at the head, where the kind, the index and the name of the key stand."""
    good = EvaluationKeys.from_bytes(key_bytes)
    name = good.names()[position % len(good.names())]
    forged = flipped(bytes(good.blobs[name]), position % 45 if edge else position, bit)
    keys = EvaluationKeys(good.artifact, good.client, {**good.blobs, name: forged})
    try:
        Server(artifact, keys, allow_insecure=True).close()
    except WireError:
        return
    assert not edge


def test_fields_of_messages_are_checked(input_bytes: bytes) -> None:
    for fields in (
        {},
        {"artifact": "0" * 32},
        {"artifact": "0" * 32, "client": "x" * 32},
        {"artifact": "0" * 32, "client": 5},
        {"artifact": "0" * 32, "client": "0" * 32, "secret": "1"},
        {"artifact": ["0"] * 32, "client": "0" * 32},
    ):
        with pytest.raises(WireError, match="fields"):
            EncryptedInput.from_bytes(pack(Container("encrypted inputs", VERSION, fields)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["keys", "inputs", "outputs"])
def test_forged_messages_long(kind: str) -> None:
    tally = fuzz(forged(kind), attempt(kind), 1500, seed=3)
    assert not tally.failures
    assert tally.refused > 300
