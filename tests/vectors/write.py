"""The test vectors of docs/wire.md, from fixed seeds: `python tests/vectors/write.py` writes the files beside it.

What a client draws at random is replaced by digests of names and numbers. Nothing here is secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np

from heliograph.artifact.public import PublicArtifact
from heliograph.artifact.wire import PublicSpec
from heliograph.ckks.chains import Chain
from heliograph.ckks.embedding import coefficients_of, rounded_at
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.ir.encoding import Encoding
from heliograph.ir.maps.layout import Layout, gap_axes, matrix_axes
from heliograph.records import to_json
from heliograph.report.figures import Certified
from heliograph.runtime import residues
from heliograph.runtime.client import keyfile
from heliograph.runtime.client.client import Client
from heliograph.runtime.client.cryptor import cryptor as cryptors
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.client.cryptor.randomness import gaussian, sparse_ternary, ternary, thresholds
from heliograph.runtime.noise import SecretStream
from heliograph.runtime.wire.expansion import uniform_into
from heliograph.runtime.wire.forms import fresh_form, key_form, read_ciphertext, sparse_primes
from heliograph.runtime.wire.keyfolder import key_parts
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput
from heliograph.runtime.wire.packed import pack

FOLDER = Path(__file__).parent
RING = Ring(10, 30, 25, 2, 2, None, short_specials=True)
LOWER = RING.lower(1, 1)
BOOTSTRAPPED = Ring(10, 39, 34, 17, 4, None, (2, 2), bootstrap_babies=4)
# Rings whose primes are listed, with those of some lower parts.
RINGS = (
    RING,
    LOWER,
    BOOTSTRAPPED,
    Ring(13, 36, 30, 4, 3),
    Ring(14, 60, 45, 5, 2),
    Ring(15, 40, 40, 12, 6, short_specials=True),
)
LOG_SCALE = 24.5
PASSPHRASE = "correct horse bättery"
TAG, REQUEST = "00112233445566778899aabbccddeeff", "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
LAYOUTS = (
    Layout((5,), 32, 8),
    Layout((2, 3), 32, 8, gap_axes((2, 3), width=4)),
    Layout((5, 2, 2), 32, 32, gap_axes((5, 2, 2), 2)),
    Layout((2, 2, 3), 32, 16, gap_axes((2, 2, 3), 1, 4, 8)),
    Layout((4,), 32, 4, shift=1, copies=4),
    Layout((4,), 32, 4, shift=1, copies=2),
    Layout((3,), 32, 4, samples=4),
    Layout((2, 4), 32, 32, matrix_axes((2, 4), (2, 1, 0), (2, 4, 16))),
    Layout((40,), 32, 32),
    Layout((3,), 32, 4, samples=2, groups=2),
    Layout((40,), 32, 32, groups=2),
)

# What clients make of a row, and rows with holes, unknown texts, and values that are edges.
ENCODINGS = (
    Encoding(2, compared=(0, 1, 1), edges=(0.5, -1.0, 2.0)),
    Encoding(2, compared=(0, 1), edges=(0.5, 0.5)),
    Encoding(2, numbers=(0, 1), centres=(2.0, 0.0), scales=(4.0, 1.0), rounded=(0,)),
    Encoding(
        3, numbers=(0, 2), centres=(1.0, 0.0), scales=(2.0, 0.5), clipped=True, missing=(0,), filled=(0,), fills=(2.0,)
    ),
    Encoding(
        3,
        numbers=(1,),
        centres=(10.0,),
        scales=(4.0,),
        coded=(0, 0, 2),
        codes=(0.0, 1.0, 7.0),
        missing=(0, 2),
        texts=(0,),
        labels=(("Oslo", "Köln"),),
        known=(2,),
        allowed=((7.0, 8.0),),
    ),
)
TABLE_ROWS: tuple[tuple[tuple[Any, ...], ...], ...] = (
    ((0.5, 2.0), (0.75, 2.5), (-3.0, -1.0)),
    ((0.5, 0.75),),
    ((2.5, 0.5), (3.5, 0.25), (-0.75, -1.0)),
    ((None, 9.0, 0.2), (4.0, None, -0.125)),
    (("Köln", 12.0, 7.0), ("Rom", 6.0, 8.0), (None, 10.0, None)),
)


def seed_of(name: str) -> bytes:
    return hashlib.sha256(f"heliograph test vectors: {name}".encode()).digest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Drawn:
    """The seeds of one object: those that are sent, and those of its secret streams, in the order of their use."""

    def __init__(self, name: str) -> None:
        self.name, self.sent, self.secret = name, [], []  # type: str, list[bytes], list[bytes]

    def _next(self, kind: str, found: list[bytes]) -> bytes:
        found.append(seed_of(f"{self.name}, {kind} {len(found)}"))
        return found[-1]

    @contextlib.contextmanager
    def here(self) -> Iterator[Drawn]:
        with mock.patch.multiple(
            cryptors,
            SecretStream=lambda: SecretStream(self._next("secret", self.secret)),
            fresh_seed=lambda: self._next("sent", self.sent),
        ):
            yield self

    def told(self, data: bytes, moduli: tuple[int, ...]) -> dict[str, Any]:
        """What the vectors have of an object: seeds, digest, and the beginnings of the digests of what it holds."""
        blocks, offset = [], 80
        for prime in moduli:
            size = RING.ring_dim * prime.bit_length() // 8
            blocks.append(sha256(data[offset : offset + size])[:16])
            offset += size
        assert offset == len(data)
        seeds = {"sent_seeds": [seed.hex() for seed in self.sent], "secret_seeds": [seed.hex() for seed in self.secret]}
        return {"bytes": len(data), "sha256": sha256(data), **seeds, "blocks": blocks}


def public() -> PublicArtifact:
    """Of y = t + rotated(t, 5), t = x * x, one rotation by 3 in the whole chain, one by 2 and the conjugation."""
    slots = RING.slots
    given = PublicSpec(
        "x",
        (2, 3),
        Layout((2, 3), slots, 8, gap_axes((2, 3), width=4)),
        -1.0,
        1.0,
        levels=(2,),
        log_scales=(LOG_SCALE,),
    )
    found = PublicSpec(
        "y", (8,), Layout((8,), slots, 8), 0.0, 2.0, "proved", log_scales=(2 * LOG_SCALE - RING.log_primes[2],)
    )
    return PublicArtifact(
        "test vectors",
        sha256(b"the server's part"),
        (Chain(RING, (3,), True), Chain(LOWER, (2,), False)),
        (given,),
        (found,),
        {"predicted_ms": 1.5, "client_peak_bytes": 1e6, "scheme_error": 1e-4, "output_magnitude": 2.0},
        conjugation_key=True,
    )


def bootstrapped() -> PublicArtifact:
    """One that has everything that only some have: bootstraps, also in a lower part, a certificate, several samples."""
    layout = Layout((3,), RING.slots, 4, samples=4)
    columns, classes = ("a", "b", "ü"), 3
    given = (
        PublicSpec("x", (3,), layout, -1.0, 1.0, columns=columns, levels=(2,), log_scales=(34.0,)),
        PublicSpec("z", (3,), layout, 0.0, 1.0, classes=classes, levels=(4,), log_scales=(34.0,), carried=True),
    )
    found = (
        PublicSpec(
            "y", (3,), layout, -8.0, 8.0, "observed", finish="softmax", finish_axis=0, scale=4.0, log_scales=(33.5,)
        ),
    )
    certificate = Certified(
        "l2", 0.25, 100, 10, 80, 0.75, 0.01, 1e-3, "normal", 0.5, 8.0, 0.1, 0.05, 1e-4, 1e-3, 1e-3, 0.003, 0.99, 1000
    )
    return PublicArtifact(
        "with bootstraps",
        sha256(b"another server's part"),
        (
            Chain(BOOTSTRAPPED, (3,), True),
            Chain(BOOTSTRAPPED.lower(15, 4, True), (1, 3)),
            Chain(BOOTSTRAPPED.lower(2, 1), (7,), True),
        ),
        given,
        found,
        {"predicted_ms": 1500.0, "client_peak_bytes": 1e9, "scheme_error": 1e-05, "output_magnitude": 8.0},
        certificate=certificate,
        raising_chains=(0,),
    )


def sample() -> Array:
    return np.array([[0.5, -0.25, 0.125], [1.0, -1.0, 0.3]])


def result() -> list[float]:
    """What the program gives in the clear."""
    x = np.zeros(8)
    x[[0, 1, 2, 4, 5, 6]] = sample().ravel()
    return list(x * x + np.roll(x * x, -5))


class Writer:
    """All files. `kind` is the client's arithmetic, as `cryptor.arithmetic` gives it."""

    def __init__(self, kind: Callable[..., Any] | None = None) -> None:
        self._kind = cryptors.arithmetic if kind is None else kind
        self.public = public()
        self.files: dict[str, bytes] = {
            "public.bin": self.public.to_bytes(),
            "bootstrapped.bin": bootstrapped().to_bytes(),
        }
        self.objects: dict[str, Any] = {}
        with mock.patch.object(cryptors, "arithmetic", self._kind):
            self._client()

    def _client(self) -> None:
        with Drawn("secret key").here() as drawn:
            cryptor = Cryptor(RING, tag=TAG)
            self.client = client = Client(self.public, allow_insecure=True, cryptor=cryptor)
        secret = cryptor.secret_bytes()
        self.secret = {
            "tag": TAG,
            "secret_seed": drawn.secret[0].hex(),
            "sha256": sha256(secret),
            "first": [str(value) for value in np.frombuffer(secret, "<u8", 4)],
        }
        with Drawn("x/0").here() as drawn:
            encrypted = client.encrypt(sample())
        self.encrypted = EncryptedInput(self.public.fingerprint, TAG, encrypted.blobs, request=REQUEST)
        self.objects["x/0"] = drawn.told(
            bytes(encrypted.blob("x/0")), tuple(RING.primes[i] for i in fresh_form(RING, 2).uniform.values())
        )
        self.keys = {}
        # The last one is no key of the program: bootstraps have it.
        for key in (*self.public.evaluation_keys, EvaluationKey("pair", RING, "encapsulation")):
            with Drawn(key.name).here() as drawn:
                self.keys[key.name] = made = cryptor.evaluation_key_bytes(key)
            form = key_form(key)
            self.objects[key.name] = drawn.told(made, tuple(form.moduli[place] for place in form.written))
        self.files["input.bin"] = self.encrypted.to_bytes()
        # The file of a key in a folder.
        self.files["relinearization.bin"] = b"".join(
            key_parts(self.public.fingerprint, TAG, "relinearization", self.keys["relinearization"])
        )
        self.files["client-key.bin"] = self._key_file(PASSPHRASE)
        self.open_key = sha256(self._key_file(None))

    def _key_file(self, passphrase: str | None) -> bytes:
        with (
            TemporaryDirectory() as folder,
            mock.patch.object(keyfile.os, "urandom", lambda count: seed_of(f"{count} bytes of a key file")[:count]),
        ):
            self.client.save(Path(folder) / "key", passphrase)
            return (Path(folder) / "key").read_bytes()

    def evaluated(self) -> bytes:
        """The answer, by the kernels of a server."""
        from heliograph.runtime.native.ciphertext import read_ciphertext as read
        from heliograph.runtime.native.ciphertext import read_key, write_ciphertext
        from heliograph.runtime.native.primitives import NativePrimitives
        from heliograph.runtime.native.tables import ChainTables, prime_rows

        def part(ring: Ring) -> NativePrimitives:
            special = ring.special_primes
            tables = ChainTables.of(ring, special, prime_rows(RING.ring_dim, tuple(ring.primes) + special))
            keys = {
                (key.kind, key.amount): read_key(self.keys[key.name], key, TAG)
                for key in self.public.evaluation_keys
                if key.ring == ring
            }
            return NativePrimitives(tables, lambda kind, amount: keys[kind, amount])

        whole, lower = part(RING), part(LOWER)
        x = read(self.encrypted.blob("x/0"), RING, 2, TAG, "x/0")
        t = whole.rescale(whole.relinearize(whole.mul(x, x)))
        turned = lower.rotate(whole.conjugate(whole.rotate(t, 3)), 2)
        y = whole.level_drop(whole.add(t, turned), 1)
        blobs = {"0": write_ciphertext(y, RING, TAG)}
        return EncryptedOutput(self.public.fingerprint, TAG, blobs, request=REQUEST).to_bytes()

    def with_answer(self, output: bytes) -> dict[str, bytes]:
        """All files, by name."""
        vectors = {
            "about": "test vectors of docs/wire.md; residues and primes are decimal texts, bytes hexadecimal digits",
            "primes": [_primes(ring) for ring in RINGS],
            "expansion": [_expansion(ring, place) for ring, place in ((RING, 3), (RINGS[4], 0))],
            "packing": _packing(),
            "draws": _draws(),
            "encoding": _encoding(),
            "layouts": [_layout(layout) for layout in LAYOUTS],
            "rows": [_rows(*each) for each in zip(ENCODINGS, TABLE_ROWS, strict=True)],
            "fingerprints": {
                name: PublicArtifact.from_bytes(self.files[name]).fingerprint
                for name in ("public.bin", "bootstrapped.bin")
            },
            "keys": {
                "public.bin": [_key(key) for key in self.public.evaluation_keys],
                "bootstrapped.bin": [_key(key) for key in bootstrapped().evaluation_keys],
            },
            "secret": self.secret,
            "sample": sample().tolist(),
            "request": REQUEST,
            "objects": self.objects,
            "key_file": {
                "passphrase": PASSPHRASE,
                "salt": seed_of("16 bytes of a key file")[:16].hex(),
                "nonce": seed_of("12 bytes of a key file")[:12].hex(),
                "open_sha256": self.open_key,
            },
            "decryption": self._decryption(output),
        }
        return {**self.files, "output.bin": output, "vectors.json": _text(vectors).encode() + b"\n"}

    def _decryption(self, output: bytes) -> dict[str, Any]:
        """The message of the answer before it is decoded: exact."""
        (spec,) = self.public.outputs
        b, a = read_ciphertext(EncryptedOutput.from_bytes(output).blob("0"), RING, 0, TAG, "0")[:, 0]
        q, secret = RING.primes[0], np.frombuffer(self.client._cryptor.secret_bytes(), "<u8", RING.ring_dim)
        values = residues.total(b, residues.Factors.of(a, q).times(secret), q)
        message = residues.centered(residues.backward(values, q), q)
        return {
            "log_scale": spec.log_scales[0],
            "first": message[:8].tolist(),
            "sha256": sha256(message.astype("<i8").tobytes()),
            "result": result(),
            "within": 1e-3,
        }


def _text(value: Any, depth: int = 0) -> str:
    """JSON with a line for each entry of the first two levels."""
    if depth == 2 or not isinstance(value, (dict, list)) or not value:
        return json.dumps(value, ensure_ascii=False)
    pairs = (
        ((f"{json.dumps(name)}: ", each) for name, each in value.items())
        if isinstance(value, dict)
        else (("", each) for each in value)
    )
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return begin + "\n" + ",\n".join(name + _text(each, depth + 1) for name, each in pairs) + "\n" + end


def _primes(ring: Ring) -> dict[str, Any]:
    special = ring.special_primes
    every = dict.fromkeys((*ring.primes, *special, *sparse_primes(ring)))
    return {
        "ring": to_json(replace(ring, chain_levels=None, of_bootstrapping=False))
        | {"chain_levels": ring.chain_levels or ring.levels},
        "chain": list(map(str, ring.primes)),
        "special": list(map(str, special)),
        "sparse": list(map(str, sparse_primes(ring))),
        "roots": {str(q): str(residues.smallest_root(ring.ring_dim, q)) for q in every},
    }


def _expansion(ring: Ring, place: int) -> dict[str, Any]:
    form = fresh_form(ring, 2)
    header, prime = form.header(seed_of("expansion"), TAG), form.moduli[3 + place % 3]
    context = header + ring.ring_dim.to_bytes(4, "little") + place.to_bytes(4, "little") + prime.to_bytes(8, "little")
    row = np.empty(ring.ring_dim, dtype=np.uint64)
    uniform_into(row, context, prime)
    key = hashlib.shake_256(b"heliograph uniform polynomial 2\0" + context).digest(32)
    return {
        "header": header.hex(),
        "ring_dim": ring.ring_dim,
        "place": place,
        "prime": str(prime),
        "context": context.hex(),
        "aes_key": key.hex(),
        "stream": SecretStream(key).octets(64).tobytes().hex(),
        "first": [str(value) for value in row[:8]],
        "sha256": sha256(row.astype("<u8").tobytes()),
    }


def _packing() -> list[dict[str, Any]]:
    made = []
    for prime in (RING.primes[1], BOOTSTRAPPED.primes[0], 2**61 - 1):
        values = [int.from_bytes(seed_of(f"packed {i}")[:8], "little") % prime for i in range(128)]
        data = pack(np.array(values, dtype=np.uint64), prime)
        made.append({"prime": str(prime), "values": list(map(str, values)), "bytes": data.hex()})
    return made


def _draws() -> dict[str, Any]:
    count, seed = 1 << 12, seed_of("draws")
    secret, error = ternary(SecretStream(seed), count), gaussian(SecretStream(seed), count)
    sparse = sparse_ternary(SecretStream(seed), 1 << 10, 32)
    return {
        "seed": seed.hex(),
        "stream": SecretStream(seed).octets(64).tobytes().hex(),
        "count": count,
        "ternary": {"first": secret[:32].tolist(), "sha256": sha256(secret.astype(np.int8).tobytes())},
        "gaussian": {"first": error[:32].tolist(), "sha256": sha256(error.astype(np.int8).tobytes())},
        "sparse": {
            "size": 1 << 10,
            "weight": 32,
            "nonzero": [[int(i), int(sparse[i])] for i in np.flatnonzero(sparse)],
        },
        "thresholds": [f"{int(high):016x}{int(low):016x}" for high, low in thresholds()],
    }


def _encoding() -> dict[str, Any]:
    """Rounded coefficients; none is near the middle of two whole numbers, where floating point would decide."""
    slots = np.array([math.sin(i) for i in range(RING.slots)])
    scaled = coefficients_of(slots, RING.slots) * 2.0**LOG_SCALE
    assert np.abs(scaled - np.floor(scaled) - 0.5).min() > 1e-6
    rounded = rounded_at(coefficients_of(slots, RING.slots), LOG_SCALE, "a vector")[0].astype("<i8")
    return {
        "slots": "sin(j) in slot j",
        "log_scale": LOG_SCALE,
        "first": rounded[:8].tolist(),
        "sha256": sha256(rounded.tobytes()),
    }


def _rows(encoding: Encoding, rows: tuple[tuple[Any, ...], ...]) -> dict[str, Any]:
    given = encoding.values(np.array(rows, dtype=object))
    assert not encoding.unknown(given)
    return {"encoding": to_json(encoding), "rows": rows, "elements": encoding.encoded(given).tolist()}


def _layout(layout: Layout) -> dict[str, Any]:
    """Where elements 1, 2, ... stand; several samples are counted on."""
    count = layout.size * layout.batch
    shape = layout.shape if layout.batch == 1 else (layout.batch, *layout.shape)
    tensor = np.arange(1.0, count + 1).reshape(shape)
    vectors = layout.pack(tensor)
    assert (layout.unpack(vectors) == tensor).all()
    return {"layout": to_json(layout), "ciphertexts": [vector.astype(int).tolist() for vector in vectors]}


def _key(key: EvaluationKey) -> dict[str, Any]:
    made = {"name": key.name, "levels": key.ring.levels, "bytes": key.sent_bytes + 80}
    return made | ({"index": key.index} if key.kind in ("rotation", "conjugation") else {})


def write(folder: Path) -> Mapping[str, bytes]:
    writer = Writer()
    files = writer.with_answer(writer.evaluated())
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files


if __name__ == "__main__":
    for name, data in write(FOLDER).items():
        print(f"{name:24}{len(data):8}")
