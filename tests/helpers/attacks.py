"""Hostile files against client and server, from reading to the decrypted answer, on programs of every kind.

Where helpers/hostile_artifacts.py and helpers/hostile_messages.py flip and replace what stands in a file, these know its
structure: leaves of JSON in headers, public artifacts, records and key files; whole key folders; bootstrapped programs,
several samples at once, noise, plain inputs.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import io
import json
import math
import random
import re
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from helpers import hostile_artifacts
from helpers.fuzzing import mutated_array_file
from helpers.records import values_of, with_values
from runtime import bootstrapped
from runtime.support import mlp, toy_artifact

from heliograph.array_files import read_arrays
from heliograph.artifact.artifact import VERSION, Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.public import VERSION as PUBLIC_VERSION
from heliograph.artifact.public import PublicArtifact
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.dsl.parse import parse
from heliograph.errors import HeliographError
from heliograph.execution.interface import batch_of, input_shape
from heliograph.files import Bytes
from heliograph.ir.text import parse_program
from heliograph.runtime.client import keyfile
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput, EvaluationKeys
from heliograph.tools.simulate import simulate

# What a mutant may ask for and still be run to the end: every other one would only tell that a machine has no such memory.
MAX_KEY_BYTES, MAX_RING, MAX_KEYS = 150_000_000, 8192, 60
DEEP = """program deep
input x: secret tensor[8] in [-1, 1]
a = relu(x * x)
b = relu(a * x)
c = relu(b * a)
d = relu(c * b)
output y = relu(d * c) + d
"""
VALUES: tuple[Any, ...] = (
    None, True, False, "x", "", [], {}, [1], {"a": 1}, 0, 1, 2, 3, 4, 5, 7, 8, 16, 100, 255, 256, 512, 1024, 4096, 65536,
    1 << 17, 1 << 20, 1 << 22, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 62, 1 << 63, 10**39, -1, -2, -7, 0.0, 0.5, 1.0, -1.0,
    1e-300, 1e300, -1e30, 1e18, 1e30, 60, 61, 59, 55.0, 240.0, 241.0, "a" * 300, "\x1b[2J", "\u0000", "../../x",
    "rotation/1", "0" * 32, "0" * 64,
)  # fmt: skip


class TooLargeError(HeliographError):
    """The mutant asks for more than these tests have; nothing refused it."""


@functools.cache
def artifact(name: str) -> Artifact:
    toy = Options(security_bits=None, degree=3)
    if name == "deep":
        return compile(
            parse(DEEP), Options(security_bits=None, log_ring=11, bootstrap=True, precision_bits=6, degree=3)
        )
    if name == "batch":
        return compile(mlp(), Options(security_bits=None, degree=3, batch=4))
    if name == "flood":
        return compile(mlp(), Options(security_bits=None, degree=3, flood=1e-6))
    if name == "plain":
        return hostile_artifacts.artifacts()[0]
    if name == "bootstrapped":
        return bootstrapped.artifact()
    return toy_artifact() if name == "mlp" else compile(mlp(), toy)


NAMES = ("mlp", "bootstrapped", "deep", "batch", "flood", "plain")


# ------------------------------------------------------------------------------------------- mutations


def signed(data: bytes | bytearray) -> bytes:
    """The bytes with the digest that belongs to them."""
    return bytes(data) + hashlib.sha256(data).digest()


def leaves(rng: random.Random, fields: Any) -> Any:
    """JSON with one to three leaves altered, dropped, doubled or put in another one's place."""
    fields = copy.deepcopy(fields)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        inside = fields
        if not fields:
            break
        for _ in range(50):
            key = rng.choice(list(inside) if isinstance(inside, dict) else list(range(len(inside))))
            if not isinstance(inside[key], dict | list) or not inside[key] or rng.random() < 0.08:
                break
            inside = inside[key]
        old, choice = inside[key], rng.random()
        number = isinstance(old, int | float) and not isinstance(old, bool)
        if choice < 0.1:
            del inside[key]
        elif choice < 0.4 and number:
            moved = old + rng.choice((-1, 1, 2, -2, 10)) if choice < 0.3 else old * rng.choice((2, 3, -1))
            inside[key] = moved if math.isfinite(moved) else 0
        elif choice < 0.45 and isinstance(inside, list):
            inside.insert(key, copy.deepcopy(rng.choice(inside)))
        else:
            inside[key] = copy.deepcopy(rng.choice(VALUES))
    return fields


def flipped(rng: random.Random, data: bytes, near: int = 5000) -> bytes:
    """One to three places altered, cut or doubled, half of them near the start; length and digest fit again."""
    mutant = bytearray(data[:-32])
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(20, min(near, len(mutant)) if rng.random() < 0.5 else len(mutant))
        choice = rng.random()
        if choice < 0.6:
            mutant[place] ^= 1 << rng.randrange(8)
        elif choice < 0.75:
            mutant[place : place + 8] = struct.pack(
                "<Q", rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, 1 << 60))
            )
        elif choice < 0.85:
            del mutant[place : place + rng.randint(1, 16)]
        else:
            mutant[place:place] = mutant[place : place + rng.randint(1, 16)]
    mutant[8:16] = struct.pack("<Q", len(mutant) + 32)
    return signed(mutant)


def _fields(data: bytes, kind: str, version: int) -> dict[str, Any]:
    return json.loads(json.dumps(dict(unpack(data, kind, version, 1 << 30).fields)))


@functools.cache
def _file(name: str, public: bool) -> bytes:
    return artifact(name).public().to_bytes() if public else artifact(name).to_bytes()


@functools.cache
def _public_fields(name: str) -> dict[str, Any]:
    return _fields(_file(name, public=True), "public artifact", PUBLIC_VERSION)


def header(rng: random.Random) -> bytes:
    """The header of an artifact or its public part, with its list of blobs, mutated as JSON or as text."""
    good = _file(rng.choice(NAMES), rng.random() < 0.5)
    (length,) = struct.unpack_from("<I", good, 16)
    whole = json.loads(good[20 : 20 + length])
    frame = leaves(rng, {key: value for key, value in whole.items() if key != "fields"})
    text = json.dumps({**frame, "fields": whole["fields"]} if rng.random() < 0.9 else frame).encode()
    if rng.random() < 0.2:
        odd = (b"NaN", b"Infinity", b"1e999", b"-0", b"1" * 41, b"[" * 5000, b'"\\ud800"', b"\xff")
        text = text.replace(rng.choice((b"null", b"0", b"4", b"[]")), rng.choice(odd), 1)
    blobs = good[20 + length : -32]
    total = 20 + len(text) + len(blobs) + 32
    return signed(b"HELIOGR1" + struct.pack("<QI", total, len(text)) + text + blobs)


def public_part(rng: random.Random) -> bytes:
    return pack(Container("public artifact", PUBLIC_VERSION, leaves(rng, _public_fields(rng.choice(NAMES)))))


def records(rng: random.Random) -> bytes:
    """The records of an executable program, by their leaves: ring, chains, keys, layouts, ranges."""
    good = unpack(_file(rng.choice(NAMES), public=False), "artifact", VERSION, 1 << 30)
    text = bytes(good.bytes("text/program")).decode()
    whole = values_of(parse_program(text))
    # The table of ranges would take nearly all of the changes.
    kept = {"ranges": whole.pop("ranges")} if rng.random() < 0.7 else {}
    return hostile_artifacts._repacked(
        good, **{"text/program": with_values(text, {**leaves(rng, whole), **kept}).encode()}
    )


def text(rng: random.Random) -> bytes:
    """A few words of the text of any of the programs."""
    good = unpack(_file(rng.choice(NAMES), public=False), "artifact", VERSION, 1 << 30)
    words = hostile_artifacts._WORD.findall(bytes(good.bytes("text/program")).decode())
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(words))
        while words[place].isspace():
            place = rng.randrange(len(words))
        if re.fullmatch(r"-?[0-9]+", words[place]) and rng.random() < 0.5:
            words[place] = str(int(words[place]) + rng.choice((-1, 1, 2, -2, 10)))
        elif re.fullmatch(r"-?[0-9].*", words[place]) and rng.random() < 0.7:
            words[place] = repr(
                rng.choice((*hostile_artifacts.NUMBERS, *hostile_artifacts.REALS, float(rng.randint(-9, 9))))
            )
        elif rng.random() < 0.8:
            alike = [word for word in words if word[0].isalpha() == words[place][0].isalpha() and not word.isspace()]
            words[place] = rng.choice(alike)
        else:
            del words[place]
    return hostile_artifacts._repacked(good, **{"text/program": "".join(words).encode()})


def some_bytes(rng: random.Random) -> bytes:
    return flipped(rng, _file(rng.choice(NAMES), public=False), 100_000)


def report(rng: random.Random) -> bytes:
    """What the file of an artifact says of itself: the stored report, constants and stages."""
    good = unpack(_file(rng.choice(NAMES), public=False), "artifact", VERSION, 1 << 30)
    return hostile_artifacts._repacked(good, leaves(rng, json.loads(json.dumps(dict(good.fields)))))


# ------------------------------------------------------------------------------------------- what is done with them


def _client(public: PublicArtifact | Artifact) -> Client:
    return Client(public.public(), allow_insecure=True)


def _bounded(public: PublicArtifact) -> None:
    keys = public.evaluation_keys
    if sum(key.bytes for key in keys) > MAX_KEY_BYTES or public.ring.ring_dim > MAX_RING or len(keys) > MAX_KEYS:
        raise TooLargeError("the mutant asks for more than the test has")


def _middle(low: Any, high: Any) -> float:
    return float(low or 0.0) / 2 + float(high or 0.0) / 2


def read_header(data: bytes) -> None:
    reader = PublicArtifact if b'"public artifact"' in data else Artifact
    reader.from_bytes(data)


def use_public(data: bytes) -> None:
    """As a client does: keys, inputs in the middle of their ranges, outputs of its own encryption, plain and to share."""
    public = PublicArtifact.from_bytes(data)
    _bounded(public)
    client = _client(public)
    samples = []
    for spec in public.inputs:
        count = spec.placed.samples
        shape = spec.shape if count == 1 else (count, *spec.shape)
        samples.append(np.full(shape, _middle(spec.low, spec.high)))
    sent = client.encrypt(*samples)
    sent.to_bytes()
    if int.from_bytes(hashlib.sha256(data).digest()[:2], "big") % 10 == 0:
        client.evaluation_keys().to_bytes()
    count = sum(len(spec.log_scales) for spec in public.outputs)
    zeros = np.zeros(public.ring.slots)
    blobs: dict[str, Bytes] = {str(i): client._cryptor.encrypted_bytes(zeros, 0, 30.0) for i in range(min(count, 64))}
    answer = EncryptedOutput(public.fingerprint, client.id, blobs, request=sent.request)
    client.decrypt(answer)
    client.decrypt(answer, share=True)


def use_artifact(data: bytes) -> None:
    """Read, simulated, and run on OpenFHE with keys of its own, to the decrypted answer."""
    read = Artifact.from_bytes(data)
    program, seen = read.program, dict[str, Any]()
    batch = batch_of(program)
    for node in program.inputs:
        shape = input_shape(program, node) if node.type.secret else node.attrs["shape"]
        whole = (batch, *shape) if node.type.secret and batch > 1 else shape
        seen.setdefault(node.attrs["name"], np.full(whole, _middle(node.attrs.get("low"), node.attrs.get("high"))))
    simulate(read, *seen.values())
    public = read.public()
    _bounded(public)
    client = _client(public)
    secret = [seen[spec.name] for spec in public.inputs]
    plain = {name: seen[name] for name in read.plain_inputs}
    with Server(read, client.evaluation_keys(), allow_insecure=True) as server:
        client.decrypt(server.run(client.encrypt(*secret), plain=plain))


@functools.cache
def _folder() -> Path:
    """Scratch space of this process."""
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="heliograph-attacks-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def _key_files() -> dict[tuple[str, str | None], bytes]:
    files = {}
    for name in ("mlp", "bootstrapped"):
        client = _client(artifact(name))
        for passphrase in (None, "pw"):
            client.save(_folder() / "sound.key", passphrase, overwrite=True)
            files[name, passphrase] = (_folder() / "sound.key").read_bytes()
    return files


def key_file(rng: random.Random) -> tuple[str, str | None, bytes]:
    name, passphrase = rng.choice(list(_key_files()))
    data = _key_files()[name, passphrase]
    if rng.random() < 0.5:
        return name, passphrase, flipped(rng, data, 20_000)
    good = unpack(data, keyfile.KIND, keyfile.VERSION, 1 << 30)
    fields = leaves(rng, json.loads(json.dumps(dict(good.fields))))
    blobs = {key: blob if isinstance(blob, np.ndarray) else bytes(blob) for key, blob in good.blobs.items()}
    return name, passphrase, pack(Container(good.kind, good.version, fields, blobs))


def use_key_file(mutant: tuple[str, str | None, bytes]) -> None:
    name, passphrase, data = mutant
    path = _folder() / "mutant.key"
    path.write_bytes(data)
    # A key that others can read would be refused for that alone.
    path.chmod(0o600)
    client = Client.load(path, passphrase, allow_insecure=True)
    client.encrypt(*([bootstrapped.sample()] if name == "bootstrapped" else [hostile_sample()]))


def hostile_sample() -> Any:
    return np.full(8, 0.25)


@functools.cache
def _served() -> tuple[Client, EncryptedInput, dict[str, bytes], bytes, bytes, bytes]:
    """A client of the bootstrapped program, its input, the files of its key folder, and its messages."""
    client = _client(artifact("bootstrapped"))
    client.write_evaluation_keys(_folder() / "keys")
    files = {path.name: path.read_bytes() for path in (_folder() / "keys").iterdir()}
    encrypted, keys = client.encrypt(bootstrapped.sample()), client.evaluation_keys()
    answer = _server(keys).run(encrypted)
    return client, encrypted, files, keys.to_bytes(), encrypted.to_bytes(), answer.to_bytes()


_SERVERS: list[Server] = []


def _server(keys: EvaluationKeys | None = None) -> Server:
    """One server for all messages."""
    if not _SERVERS:
        assert keys is not None
        _SERVERS.append(Server(artifact("bootstrapped"), keys, allow_insecure=True))
    return _SERVERS[0]


def key_folder(rng: random.Random) -> tuple[dict[str, bytes], int | None]:
    """A key folder with one file altered, cut, absent, exchanged, or too many; and the server's bound on keys."""
    files = dict(_served()[2])
    name, choice = rng.choice(sorted(files)), rng.random()
    if choice < 0.6:
        files[name] = flipped(rng, files[name])
    elif choice < 0.7:
        files[name] = files[name][: rng.randrange(len(files[name]))]
    elif choice < 0.8:
        del files[name]
    elif choice < 0.9:
        files[name] = files[rng.choice(sorted(files))]
    else:
        files[rng.choice(("x.key", "rotation-999.key", ".a.part", "a-b-c-d.key", "ROT.key"))] = files[name]
    return files, rng.choice((None, None, 20_000_000, 30_000_000))


def use_key_folder(mutant: tuple[dict[str, bytes], int | None]) -> None:
    files, key_bytes = mutant
    client, encrypted, *_ = _served()
    folder = _folder() / "mutant"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with Server(artifact("bootstrapped"), KeyFolder(folder), key_bytes=key_bytes, allow_insecure=True) as server:
        client.decrypt(server.run(encrypted))


def keys(rng: random.Random) -> bytes:
    return flipped(rng, _served()[3])


def use_keys(data: bytes) -> None:
    client, encrypted, *_ = _served()
    with Server(artifact("bootstrapped"), EvaluationKeys.from_bytes(data), allow_insecure=True) as server:
        client.decrypt(server.run(encrypted))


def message(rng: random.Random) -> tuple[bool, bytes]:
    sent = rng.random() < 0.6
    return sent, flipped(rng, _served()[4 if sent else 5])


def use_message(mutant: tuple[bool, bytes]) -> None:
    sent, data = mutant
    client = _served()[0]
    client.decrypt(_server().run(EncryptedInput.from_bytes(data)) if sent else EncryptedOutput.from_bytes(data))


@functools.cache
def _array_files() -> tuple[bytes, bytes]:
    plain, packed = io.BytesIO(), io.BytesIO()
    np.save(plain, np.arange(4.0))
    np.savez_compressed(packed, w=np.arange(4.0), v=np.arange(3))
    return plain.getvalue(), packed.getvalue()


def array_file(rng: random.Random) -> bytes:
    return mutated_array_file(rng, rng.choice(_array_files()))


def use_array_file(data: bytes) -> None:
    """As a parameter of a program in the language, which is compiled; and as a command's input."""
    packed = data[:2] == b"PK"
    path = _folder() / ("a.npz" if packed else "a.npy")
    path.write_bytes(data)
    load = f'load("{path.name}"' + (', "w")' if packed else ")")
    source = _folder() / "p.hg"
    source.write_text(f"program p\ninput x: secret tensor[4] in [-1, 1]\nparam w = {load}\noutput y = w * x\n")
    compile(parse(source), Options(security_bits=None))
    read_arrays(path)


# name -> (maker of mutants, what is done with one)
ATTACKS: dict[str, tuple[Callable[[random.Random], Any], Callable[[Any], None]]] = {
    "container headers": (header, read_header),
    "public artifacts": (public_part, use_public),
    "programs: records": (records, use_artifact),
    "programs: text": (text, use_artifact),
    "programs: bytes": (some_bytes, use_artifact),
    "programs: report": (report, use_artifact),
    "key files": (key_file, use_key_file),
    "key folders": (key_folder, use_key_folder),
    "keys with bootstraps": (keys, use_keys),
    "messages, bootstrapped": (message, use_message),
    ".npy and .npz": (array_file, use_array_file),
}


def attempt(name: str) -> Callable[[Any], int]:
    """Uses a mutant: the length of what refused it, 0 where it was usable. What is no HeliographError gets out."""

    def use(mutant: Any) -> int:
        try:
            ATTACKS[name][1](mutant)
        except HeliographError as error:
            words = str(error)
            assert all(line.isprintable() for line in words.split("\n")), "control characters in a message"
            return len(words)
        return 0

    return use
