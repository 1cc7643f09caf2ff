"""Untrusted bytes: every message and every place in it, cut, flipped, grown, forged; only WireErrors come out."""

from __future__ import annotations

import contextlib
import hashlib
import struct

import numpy as np
import pytest
from helpers.fuzzing import fuzz
from helpers.hostile_messages import attempt, forged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.public import PublicArtifact
from heliograph.errors import RangeError, WireError
from heliograph.runtime.client import Client
from heliograph.runtime.messages import VERSION, EncryptedInput, EncryptedOutput, EvaluationKeys
from heliograph.runtime.openfhe.template import ciphertext_template, rotation_key_template
from heliograph.runtime.server import Server

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
def test_forged_inputs_never_pass_the_template(
    server: Server, whole_input_bytes: bytes, position: int, bit: int
) -> None:
    """A flipped bit either is refused, or is one of a coefficient that stays below its prime: then it is evaluated.

    The random request in the header may be any other: it comes back on the output, and a client that asks for it notices.
    """
    forged = redigested(flipped(whole_input_bytes[:-32], position, bit) + bytes(32))
    try:
        message = EncryptedInput.from_bytes(forged)
        output = server.run(message)
    except WireError:
        return
    ring, sent = server.artifact.ring, EncryptedInput.from_bytes(whole_input_bytes)
    if message.request != sent.request:
        with pytest.raises(WireError, match="answer to other inputs"):
            output.check_answers(sent)
        return
    blob = bytes(unpack(whole_input_bytes, "encrypted inputs", VERSION, 1 << 30).bytes("x/0"))
    begin = whole_input_bytes.index(blob)
    place = position % (len(whole_input_bytes) - 32) - begin
    template = ciphertext_template(ring, ring.levels)
    assert any(offset <= place < offset + 8 * ring.ring_dim for offset, _ in template.blocks)
    assert len(output.to_bytes()) > 0


@_QUICK
@given(position=st.integers(0, 2000), bit=st.integers(0, 7))
def test_forged_headers_of_ciphertexts(server: Server, whole_input_bytes: bytes, position: int, bit: int) -> None:
    """The first bytes of OpenFHE's stream: identifiers, lengths, parameters. None may be altered."""
    blob = bytes(EncryptedInput.from_bytes(whole_input_bytes).blobs["x/0"])
    ring = server.artifact.ring
    first = ciphertext_template(ring, ring.levels).blocks[0][0]
    forged = flipped(blob, position % first, bit)
    with pytest.raises(WireError):
        server.run(EncryptedInput(server._fingerprint, server.client, {"x/0": forged}))


def test_every_byte_outside_the_coefficients_is_fixed(server: Server, whole_input_bytes: bytes) -> None:
    blob = bytes(EncryptedInput.from_bytes(whole_input_bytes).blobs["x/0"])
    ring = server.artifact.ring
    template = ciphertext_template(ring, ring.levels)
    inside = np.zeros(len(blob), dtype=bool)
    for offset, _ in template.blocks:
        inside[offset : offset + 8 * ring.ring_dim] = True
    assert 2 * ring.towers * ring.ring_dim * 8 == inside.sum()
    outside = np.flatnonzero(~inside)
    assert outside.size < 2000
    for position in outside:
        with pytest.raises(WireError):
            template.check(flipped(blob, int(position), 0), server.client, "it")
    template.check(blob, server.client, "it")


def test_coefficients_must_be_below_their_primes(server: Server, whole_input_bytes: bytes) -> None:
    blob = bytes(EncryptedInput.from_bytes(whole_input_bytes).blobs["x/0"])
    ring = server.artifact.ring
    template = ciphertext_template(ring, ring.levels)
    assert {modulus for _, modulus in template.blocks} == set(ring.primes)
    for offset, modulus in template.blocks:
        for value, good in ((modulus - 1, True), (modulus, False), (2**64 - 1, False)):
            place = offset + 8 * (ring.ring_dim - 1)
            forged = blob[:place] + struct.pack("<Q", value) + blob[place + 8 :]
            if good:
                template.check(forged, server.client, "it")
                continue
            with pytest.raises(WireError, match="not below its prime"):
                template.check(forged, server.client, "it")


def test_ciphertexts_of_other_levels_and_rings_are_refused(artifact: Artifact, client: Client, server: Server) -> None:
    from runtime.support import toy_artifact

    lower = client._decryptor.encrypt(np.zeros(artifact.ring.slots), artifact.ring.levels - 1, 50.0)
    message = EncryptedInput(artifact.fingerprint, client.id, live={"x/0": lower})
    with pytest.raises(WireError, match="at level"):
        server.run(message)
    with pytest.raises(WireError, match="bytes, expected"):
        server.run(EncryptedInput.from_bytes(message.to_bytes()))
    for junk in (b"", b"\x00" * 50, b"\xff" * len(message.blob("x/0")), None, 3, "text"):
        with pytest.raises(WireError):
            server.run(
                EncryptedInput(artifact.fingerprint, client.id, {"x/0": junk})
                if isinstance(junk, bytes)
                else EncryptedInput(artifact.fingerprint, client.id, live={"x/0": junk})
            )
    assert toy_artifact() is artifact


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
def test_forged_keys_never_pass_the_template(
    artifact: Artifact, whole_key_bytes: bytes, position: int, bit: int, edge: bool
) -> None:
    """`edge` aims at the bytes around the coefficient blocks, where lengths and identifiers stand."""
    good = EvaluationKeys.from_bytes(whole_key_bytes)
    name = good.names()[position % len(good.names())]
    blob = bytes(good.blobs[name])
    if edge and name.startswith("rotation"):
        blocks = rotation_key_template(artifact.ring).blocks
        offset, _ = blocks[position % len(blocks)]
        position = offset - 1 - position % 30
    forged = flipped(blob, position, bit)
    keys = EvaluationKeys(good.artifact, good.client, {**good.blobs, name: forged})
    try:
        Server(artifact, keys, allow_insecure=True).close()
    except WireError:
        return
    assert not edge or not name.startswith("rotation")


def test_lengths_inside_keys_cannot_be_forged(artifact: Artifact, whole_key_bytes: bytes) -> None:
    """The length of a block set to 2**60 would make OpenFHE allocate without bound."""
    good = EvaluationKeys.from_bytes(whole_key_bytes)
    blob = bytes(good.blobs["rotation/1"])
    offset = rotation_key_template(artifact.ring).blocks[0][0]
    forged = blob[: offset - 8] + struct.pack("<Q", 1 << 60) + blob[offset:]
    with pytest.raises(WireError, match="does not have the expected form"):
        Server(
            artifact,
            EvaluationKeys(good.artifact, good.client, {**good.blobs, "rotation/1": forged}),
            allow_insecure=True,
        )


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
