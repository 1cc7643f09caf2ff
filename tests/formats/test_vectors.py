"""The test vectors of docs/wire.md: the package makes their bytes, and so does a client that was written from the page."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heliograph.artifact.container import pack, unpack
from heliograph.artifact.public import PublicArtifact
from heliograph.ckks.ring import Ring
from heliograph.errors import WireError
from heliograph.records import to_json
from heliograph.runtime.client import keyfile
from heliograph.runtime.client.client import Client
from heliograph.runtime.client.cryptor.arithmetic import NumpyArithmetic
from heliograph.runtime.wire.keyfolder import KeyFolder, write_index
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "vectors"
VECTORS: dict[str, Any] = json.loads((FOLDER / "vectors.json").read_text())
READERS = ("independent", "independent_artifact")


def loaded(name: str) -> Any:
    """A script of the folder as a module."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def stored(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest(values: Any, kind: str) -> str:
    return sha256(np.array([int(value) for value in values], dtype=kind).tobytes())


independent, rest, writer = (loaded(name) for name in (*READERS, "write"))


# ------------------------------------------------------------------------- the package


def same(files: dict[str, bytes]) -> None:
    found = {path.name for path in FOLDER.iterdir() if path.suffix in (".bin", ".json")}
    assert set(files) == found
    assert [name for name, data in files.items() if data != stored(name)] == []


def test_the_package_makes_the_vectors_with_numpy() -> None:
    made = writer.Writer(NumpyArithmetic)
    assert type(made.client._cryptor._basis(writer.RING).arithmetic) is NumpyArithmetic
    same(made.with_answer(stored("output.bin")))


def test_the_package_makes_the_vectors_with_kernels() -> None:
    pytest.importorskip("numba", reason="the kernels need numba")
    made = writer.Writer()
    assert type(made.client._cryptor._basis(writer.RING).arithmetic) is not NumpyArithmetic
    same(made.with_answer(made.evaluated()))


_SMALL = """
import importlib.util, json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2].split():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in sys.argv[2].split() else found(name, *more)
sys.meta_path.insert(0, Blocked())
import heliograph as hg

client = hg.Client.load("key", json.loads(sys.argv[1])["passphrase"], allow_insecure=True)
print(json.dumps({
    "result": client.decrypt(hg.EncryptedOutput.load("output.bin")).tolist(),
    "bytes": len(client.encrypt(json.loads(sys.argv[1])["sample"]).to_bytes()),
    "keys": len(client.evaluation_keys().names()),
    "arithmetic": type(client._cryptor._basis(client.public.ring).arithmetic).__name__,
}))
"""


def test_a_client_needs_numpy_scipy_and_cryptography_alone(tmp_path: Path) -> None:
    """Of all that the package may import, with nothing compiled."""
    for name, file in (("key", "client-key.bin"), ("output.bin", "output.bin")):
        (tmp_path / name).write_bytes(stored(file))
    (tmp_path / "key").chmod(0o600)
    lines = (ROOT / "constraints.txt").read_text().split()
    needed = {"numpy", "scipy", "cryptography", "cffi", "pycparser", "typing_extensions"}
    names = {each.split("==")[0].replace("-", "_").lower() for each in lines if "==" in each} - needed
    modules = names | {"sklearn", "PIL", "google", "attr", "dateutil", "yaml"}
    assert {"numba", "openfhe", "torch", "lark", "click", "httpx", "mpmath", "networkx", "rich"} <= modules
    told = json.dumps({"passphrase": VECTORS["key_file"]["passphrase"], "sample": VECTORS["sample"]})
    done = subprocess.run(
        [sys.executable, "-c", _SMALL, told, " ".join(modules)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout), VECTORS["decryption"]
    assert found["result"] == pytest.approx(expected["result"], abs=expected["within"])
    assert found["arithmetic"] == "NumpyArithmetic"
    assert found["keys"] > 0
    assert found["bytes"] == len(stored("input.bin"))


def test_the_package_reads_the_vectors(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(stored("client-key.bin"))
    public = PublicArtifact.load(FOLDER / "public.bin")
    client = Client.load(tmp_path / "key", VECTORS["key_file"]["passphrase"], artifact=public, allow_insecure=True)
    output, given = EncryptedOutput.load(FOLDER / "output.bin"), EncryptedInput.load(FOLDER / "input.bin")
    expected = VECTORS["decryption"]
    assert client.decrypt(output, of=given) == pytest.approx(expected["result"], abs=expected["within"])
    write_index(tmp_path, public.fingerprint, client.id)
    (tmp_path / "relinearization.key").write_bytes(stored("relinearization.bin"))
    key = KeyFolder(tmp_path).blob("relinearization")
    assert sha256(bytes(key)) == VECTORS["objects"]["relinearization"]["sha256"]


def test_layouts_of_different_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    for name, kind, version in (
        ("bootstrapped.bin", "public artifact", 11),
        ("client-key.bin", keyfile.KIND, keyfile.VERSION),
    ):
        container = unpack(stored(name), kind, version, 1 << 20)
        fields = json.loads(json.dumps(container.fields))
        fields.get("interface", fields)["outputs"][0]["layout"]["samples"] = 2
        (tmp_path / name).write_bytes(pack(replace(container, fields=fields)))
    with pytest.raises(WireError, match="different numbers of samples"):
        PublicArtifact.load(tmp_path / "bootstrapped.bin")
    with pytest.raises(WireError, match="different numbers of samples"):
        Client.load(tmp_path / "client-key.bin", VECTORS["key_file"]["passphrase"], allow_insecure=True)


def test_the_vectors_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 300_000


# ------------------------------------------------------------------------- a client that was written from the page


@pytest.mark.parametrize("name", READERS)
def test_the_client_of_the_page_has_nothing_of_ours(name: str) -> None:
    tree = ast.parse((FOLDER / f"{name}.py").read_text())
    imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {each.partition(".")[0] for each in imported} - set(sys.stdlib_module_names)
    assert others <= {"numpy", "cryptography", "independent"}


@pytest.fixture(scope="module")
def fields() -> dict[str, Any]:
    return dict(independent.read_container(stored("public.bin"), "public artifact", 11)[0])


@pytest.fixture(scope="module")
def ring(fields: dict[str, Any]) -> Any:
    return independent.Ring(fields["ring"])


@pytest.fixture(scope="module")
def secret(ring: Any) -> Any:
    known = VECTORS["secret"]
    return independent.Secret(independent.ternary(bytes.fromhex(known["secret_seed"]), ring.n), known["tag"])


@pytest.fixture(scope="module")
def thresholds() -> list[int]:
    """The table as the page has it."""
    page = (ROOT / "docs" / "wire.md").read_text()
    rows = re.findall(r"^ ?(\d+) ([0-9a-f]{32})$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(len(rows)))
    assert [digits for _, digits in rows] == VECTORS["draws"]["thresholds"]
    return [int(digits, 16) for _, digits in rows]


@pytest.mark.parametrize("known", VECTORS["primes"], ids=lambda known: str(known["ring"]["log_ring"]))
def test_primes_and_roots(known: dict[str, Any]) -> None:
    given = dict(known["ring"])
    level, whole = given["levels"], given.pop("chain_levels")
    found = independent.Ring(given | {"levels": whole}, level, given["digits"])
    assert list(map(str, found.primes)) == known["chain"]
    assert list(map(str, found.special)) == known["special"]
    assert list(map(str, found.sparse)) == known["sparse"]
    assert {str(q): str(independent.root(found.n, q)) for q in map(int, known["roots"])} == known["roots"]


def test_which_rings_a_client_takes() -> None:
    """The page's rules for security and sizes, on rings at random near the limits of the table."""
    random, taken = np.random.default_rng(0), 0
    for _ in range(400):
        log_ring, scale = int(random.integers(12, 17)), int(random.integers(22, 56))
        first = scale + int(random.integers(0, min(8, 61 - scale)))
        room = max(2, rest.TABLE[log_ring] // scale)
        levels = int(np.clip(room - random.integers(2, 9), 1, 45))
        ring = Ring(
            log_ring, first, scale, levels, int(random.integers(1, levels + 2)), short_specials=bool(random.integers(2))
        )
        if random.random() < 0.3:
            ring = replace(ring, bootstrap=(int(random.integers(2, 4)), 2))
        good = ring.legal and ring.secure
        assert rest.sound(to_json(ring)) == good, ring
        if good and levels > 1:
            level, digits = int(random.integers(1, levels)), int(random.integers(1, 4))
            lower = ring.lower(level, digits)
            if digits <= level + 1:
                assert rest.sound(to_json(ring), level, digits, False) == (lower.legal and lower.secure), lower
        taken += good
    assert 50 < taken < 350


@pytest.mark.parametrize("known", VECTORS["expansion"], ids=lambda known: str(known["ring_dim"]))
def test_expansion(known: dict[str, Any]) -> None:
    row = independent.expanded(bytes.fromhex(known["header"]), known["ring_dim"], known["place"], int(known["prime"]))
    assert list(map(str, row[:8])) == known["first"]
    assert digest(row, "<u8") == known["sha256"]
    assert independent.stream(bytes.fromhex(known["aes_key"]))(64).hex() == known["stream"]


@pytest.mark.parametrize("known", VECTORS["packing"], ids=lambda known: known["prime"])
def test_packing(known: dict[str, Any]) -> None:
    values, q, data = list(map(int, known["values"])), int(known["prime"]), bytes.fromhex(known["bytes"])
    assert independent.pack(values, q) == data
    assert list(independent.unpack(data, len(values), q)) == values


def test_draws(thresholds: list[int]) -> None:
    known = VECTORS["draws"]
    seed, count = bytes.fromhex(known["seed"]), known["count"]
    assert independent.stream(seed)(64).hex() == known["stream"]
    for kind, made in (
        ("ternary", independent.ternary(seed, count)),
        ("gaussian", independent.gaussian(seed, count, thresholds)),
    ):
        assert made[:32] == known[kind]["first"]
        assert digest(made, "i1") == known[kind]["sha256"]
    found = independent.sparse(seed, known["sparse"]["size"], known["sparse"]["weight"])
    assert [[i, x] for i, x in enumerate(found) if x] == known["sparse"]["nonzero"]


def test_encoding() -> None:
    known = VECTORS["encoding"]
    slots = np.sin(np.arange(writer.RING.slots))
    made = independent.encoded(slots, known["log_scale"])
    assert made[:8] == known["first"]
    assert digest(made, "<i8") == known["sha256"]
    assert independent.decoded(made, known["log_scale"]) == pytest.approx(slots, abs=1e-5)


@pytest.mark.parametrize("known", VECTORS["layouts"], ids=lambda known: str(known["layout"]["shape"]))
def test_layouts(known: dict[str, Any]) -> None:
    layout = known["layout"]
    size = int(np.prod(layout["shape"]))
    samples = np.arange(1, layout.get("samples", 1) * layout.get("groups", 1) * size + 1).reshape(-1, size)
    assert rest.packed(layout, samples).astype(int).tolist() == known["ciphertexts"]


@pytest.mark.parametrize("known", VECTORS["rows"], ids=lambda known: " ".join(known["encoding"]))
def test_rows_of_tables(known: dict[str, Any]) -> None:
    assert [rest.elements(known["encoding"], row) for row in known["rows"]] == known["elements"]


@pytest.mark.parametrize("name", VECTORS["keys"])
def test_which_keys_an_artifact_needs(name: str) -> None:
    given, text, _ = independent.read_container(stored(name), "public artifact", 11)
    assert sha256(text.encode()) == VECTORS["fingerprints"][name]
    for (key, ring, kind, index), known in zip(rest.keys(given), VECTORS["keys"][name], strict=True):
        assert (key, ring.levels, index) == (known["name"], known["levels"], known.get("index", 0))
        assert rest.key_bytes(ring, kind) == known["bytes"]


def test_the_secret_key_and_its_file(ring: Any, secret: Any) -> None:
    known, file = VECTORS["secret"], VECTORS["key_file"]
    data = b"".join(np.array(secret.values(q), dtype="<u8").tobytes() for q in ring.primes)
    assert sha256(data) == known["sha256"]
    assert [str(value) for value in secret.values(ring.primes[0])[:4]] == known["first"]
    opened, found = independent.open_key(stored("client-key.bin"), file["passphrase"])
    assert opened == data
    assert (found["client"], found["artifact"]) == (known["tag"], VECTORS["fingerprints"]["public.bin"])
    assert (found["scrypt"]["salt"], found["nonce"]) == (file["salt"], file["nonce"])
    for name in ("scrypt", "nonce"):
        del found[name]
    bare = independent.write_container("a client's secret key", 3, found, {"secret": data})
    assert sha256(bare) == file["open_sha256"]
    altered = stored("client-key.bin").replace(b'"shared": 0', b'"shared": 1')[:-32]
    with pytest.raises(Exception, match=r"^$") as refused:
        independent.open_key(altered + hashlib.sha256(altered).digest(), file["passphrase"])
    assert type(refused.value).__name__ == "InvalidTag"


def test_encryption(fields: dict[str, Any], ring: Any, secret: Any, thresholds: list[int]) -> None:
    (spec,), known = fields["inputs"], VECTORS["objects"]["x/0"]
    (slots,) = rest.packed(spec["layout"], [np.ravel(VECTORS["sample"])])
    (seed,), (error,) = ([bytes.fromhex(each) for each in known[name]] for name in ("sent_seeds", "secret_seeds"))
    errors = independent.gaussian(error, ring.n, thresholds)
    message = independent.encoded(slots, spec["log_scales"][0])
    made = secret.fresh(ring, spec["levels"][0], message, seed, errors)
    assert sha256(made) == known["sha256"]
    names = {"artifact": VECTORS["fingerprints"]["public.bin"], "client": secret.tag, "request": VECTORS["request"]}
    assert independent.write_container("encrypted inputs", 5, names, {"x/0": made}) == stored("input.bin")


def made_key(name: str, ring: Any, secret: Any, thresholds: list[int], kind: bytes, index: int) -> bytes:
    known = VECTORS["objects"][name]
    sent, drawn = ([bytes.fromhex(each) for each in known[name]] for name in ("sent_seeds", "secret_seeds"))
    more = ()
    if kind == b"p":
        small = independent.Secret(independent.sparse(drawn.pop(0), ring.n, 32), secret.tag)
        more = (small, sent[1])
    errors = [independent.gaussian(seed, ring.n, thresholds) for seed in drawn]
    return bytes(secret.key(ring, kind, index, sent[0], errors, *more))


def test_evaluation_keys(fields: dict[str, Any], ring: Any, secret: Any, thresholds: list[int]) -> None:
    keys = [*rest.keys(fields), ("pair", ring, b"p", 0)]
    assert {name for name, *_ in keys} == set(VECTORS["objects"]) - {"x/0"}
    for name, chain, kind, index in keys:
        made, known = made_key(name, chain, secret, thresholds, kind, index), VECTORS["objects"][name]
        assert len(made) == known["bytes"] == rest.key_bytes(chain, kind)
        assert sha256(made) == known["sha256"], name
        if name == "relinearization":
            names = {"artifact": VECTORS["fingerprints"]["public.bin"], "client": secret.tag, "name": name}
            file = independent.write_container("an evaluation key", 2, names, {"key": made})
            assert file == stored("relinearization.bin")


def test_decryption(fields: dict[str, Any], ring: Any, secret: Any) -> None:
    found, _, blobs = independent.read_container(stored("output.bin"), "encrypted outputs", 5)
    assert (found["client"], found["request"]) == (secret.tag, VECTORS["request"])
    known, (spec,) = VECTORS["decryption"], fields["outputs"]
    message = secret.message(ring, blobs["0"])
    assert list(message[:8]) == known["first"]
    assert digest(message, "<i8") == known["sha256"]
    slots = independent.decoded(message, spec["log_scales"][0])
    assert spec["log_scales"] == [known["log_scale"]]
    values = [slots.real[place] for place in rest.places(spec["layout"])]
    assert values == pytest.approx(known["result"], abs=known["within"])
    assert np.abs(slots.imag).max() < known["within"]
