"""The client in JavaScript (clients/js): its own tests, and round trips with servers of ours. Both need Node 20."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers.pairs import in_pairs
from runtime.support import mlp, sample

import heliograph as hg
from heliograph.artifact.public import PublicArtifact
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.ckks.sharing import SHARE_RESULTS, flooding_std
from heliograph.compiler.options import Options
from heliograph.ir import Builder, Location, Stage
from heliograph.records import to_json
from heliograph.runtime.client.answers import read_answer
from heliograph.runtime.client.cryptor import cryptor as cryptors
from heliograph.runtime.noise import SecretStream
from heliograph.runtime.wire.keyfolder import KeyFolder, write_index

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "clients" / "js"
HALF = Path(__file__).with_name("roundtrip.mjs")
_LEAST_NODE = 20


def _node() -> str:
    """The program `node`; the test is skipped, with the reason, where it is absent or too old."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("Node is not installed: the client in JavaScript is not tested")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.match(r"v(\d+)", said)[1]) < _LEAST_NODE:  # type: ignore[index]
        pytest.skip(f"Node {said.strip()} is older than {_LEAST_NODE}: the client in JavaScript is not tested")
    return found


def _run(*words: object, **more: str) -> str:
    done = subprocess.run(
        [_node(), *map(str, words)],
        cwd=PACKAGE,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.front
@pytest.mark.parametrize("name", ["vectors", "client", "form", "package", "worker", "remote"])
def test_its_own_tests(name: str) -> None:
    """The vectors of docs/wire.md to the byte, refusals, hostile messages, and the worker."""
    _run("--test", f"test/{name}.test.mjs")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_hostile_messages() -> None:
    _run("--test", "--test-name-pattern=hostile", "test/client.test.mjs", HELIOGRAPH_HOSTILE="100000")


def test_the_webassembly_is_the_one_whose_digest_is_known() -> None:
    """Also where Node is not installed."""
    known = dict(re.findall(r'"(\w+\.wasm)": "([0-9a-f]{64})"', (PACKAGE / "wasm" / "digests.js").read_text()))
    files = sorted((PACKAGE / "wasm").glob("*.wasm"))
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files} == known


@pytest.mark.timeout(600)
def test_the_webassembly_is_what_its_source_gives() -> None:
    """With the compiler that clients/js/kernels/build.py names, which few machines have."""
    script = PACKAGE / "kernels" / "build.py"
    wanted = re.search(r"ziglang==([\d.]+)", script.read_text())[1]  # type: ignore[index]
    try:
        found = importlib.metadata.version("ziglang")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"ziglang is not installed: pip install ziglang=={wanted}")
    if found != wanted:
        pytest.skip(f"ziglang {found} is installed, and the kernels are built with {wanted}")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_vectors_thresholds_are_the_ones_of_the_page() -> None:
    page = re.findall(r"^ ?\d+ ([0-9a-f]{32})$", (ROOT / "docs" / "wire.md").read_text(), re.MULTILINE)
    assert re.findall(r"[0-9a-f]{32}", (PACKAGE / "src" / "thresholds.js").read_text()) == page


def _network() -> tuple[hg.Artifact, list[Any], np.ndarray]:
    """An artifact, values for a run, and what comes out in the clear."""
    artifact = hg.compile(mlp(), Options(security_bits=None, degree=5))
    x = sample()
    return artifact, [x.tolist()], np.asarray(hg.simulate(artifact, x))


def _batch() -> tuple[hg.Artifact, list[Any], np.ndarray]:
    artifact = hg.compile(mlp(), Options(security_bits=None, degree=5, batch=4))
    rows = np.stack([sample(seed) for seed in range(3)])
    return artifact, [rows.tolist()], np.asarray(hg.simulate(artifact, rows))


def _pairs() -> tuple[hg.Artifact, list[Any], np.ndarray]:
    """A batch in two groups, of which each has its own ciphertexts (tests/passes/test_pair_samples.py)."""

    with in_pairs():
        artifact = hg.compile(mlp(), Options(security_bits=None, degree=5, batch=4))
    assert artifact.public().inputs[0].placed.groups == 2
    rows = np.stack([sample(seed) for seed in range(3)])
    return artifact, [rows.tolist()], np.asarray(hg.simulate(artifact, rows))


def _trees() -> tuple[hg.Artifact, list[Any], np.ndarray]:
    """A forest whose rows the client compares with thresholds: the input has an encoding."""
    ensemble = pytest.importorskip("sklearn.ensemble", reason="trees need scikit-learn")
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 4))
    labels = (rows[:, 0] + rows[:, 1] > 0).astype(int)
    forest = ensemble.RandomForestClassifier(n_estimators=3, max_depth=3, random_state=0).fit(rows, labels)
    artifact = hg.compile(hg.from_sklearn(forest, rows[:50], binned=True), Options(security_bits=None))
    return artifact, [rows[0].tolist()], forest.predict_proba(rows[:1])[0]


def _class() -> tuple[hg.Artifact, list[Any], np.ndarray]:
    """A program that reveals nothing but the class."""
    artifact = hg.compile(hg.top1(mlp(), gap=0.02, bits=5.0), Options(security_bits=None, log_ring=11, degree=5))
    x = sample()
    return artifact, [x.tolist()], np.asarray(hg.simulate(artifact, x))


def _bootstrapped() -> tuple[hg.Artifact, list[Any], np.ndarray]:
    """A program that bootstraps: its keys have the pair for the sparse secret."""
    options = Options(security_bits=None, log_ring=11, scale_bits=36, bootstrap=True, degree=7)
    artifact = hg.compile(hg.parse(DEEP), options)
    x = np.linspace(-1, 1, 8)
    return artifact, [x.tolist()], np.asarray(hg.simulate(artifact, x))


DEEP = """program deep
input x: secret slots[8] in [-1, 1]
y = bootstrap(x * 0.5 + 0.25)
output z = y * y
"""
COUNTER = """program counter
input x: secret tensor[4] in [-1, 1]
input total: carried tensor[4] in [-1, 1]
seen = total * 0.5 + x * x * 0.25
output seen
output total = seen
"""
PROGRAMS = {
    "network": _network,
    "batch": _batch,
    "batch in pairs": _pairs,
    "trees": _trees,
    "class": _class,
    "bootstrapped": _bootstrapped,
}


def _given(artifact: hg.Artifact, values: list[Any], folder: Path) -> None:
    artifact.public().save(folder / "public.bin")
    given = {"values": values, "fingerprint": artifact.fingerprint}
    (folder / "values.json").write_text(json.dumps(given))


@pytest.mark.parametrize("name", [pytest.param("network", marks=pytest.mark.front), *list(PROGRAMS)[1:]])
def test_a_server_takes_its_keys_and_inputs(name: str, tmp_path: Path) -> None:
    artifact, values, clear = PROGRAMS[name]()
    _given(artifact, values, tmp_path)
    _run(HALF, "make", tmp_path)
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    write_index(tmp_path / "keys", artifact.fingerprint, receipt["client"])
    with hg.Server(artifact, KeyFolder(tmp_path / "keys"), allow_insecure=True) as server:
        output = server.run(hg.EncryptedInput.load(tmp_path / "input.bin"))
    output.save(tmp_path / "output.bin")
    (found,) = json.loads(_run(HALF, "read", tmp_path))
    assert np.reshape(found["data"], found["shape"]) == pytest.approx(clear, abs=0.02)
    # The Python client opens its key file, and reads the same answer.
    with pytest.warns(hg.errors.InsecureWarning):
        client = hg.Client.load(tmp_path / "client.key", "a passphrase", artifact=artifact, allow_insecure=True)
    assert client.decrypt(output)[: len(clear)] == pytest.approx(clear, abs=0.02)


def test_python_and_javascript_read_each_others_key_files(tmp_path: Path) -> None:
    artifact, values, clear = _network()
    _given(artifact, values, tmp_path)
    client = hg.Client(artifact.public(), allow_insecure=True)
    client.save(tmp_path / "client.key", "a passphrase")
    encrypted = client.encrypt(*map(np.array, values))
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        server.run(encrypted).save(tmp_path / "output.bin")
    (tmp_path / "receipt.json").write_text(json.dumps({"request": encrypted.request}))
    (found,) = json.loads(_run(HALF, "read", tmp_path))
    assert found["data"] == pytest.approx(clear, abs=0.02)


# With primes of one word and of two, of 60 bits and of 30, and with special primes of all kinds.
RINGS = {
    "short": Ring(12, 30, 28, 3, 2, None, short_specials=True),
    "long": Ring(13, 60, 45, 4, 2, None),
    "bootstrapped": Ring(13, 39, 34, 16, 5, None, (2, 2), short_specials=True),
    "largest": Ring(16, 58, 50, 14, 3, None, (2, 2)),
}


@pytest.mark.parametrize("name", ["short", "long", "bootstrapped", pytest.param("largest", marks=pytest.mark.slow)])
def test_larger_rings_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    ring, seeds = RINGS[name], {"secret": [], "sent": []}  # type: ignore[var-annotated]

    def drawn(kind: str) -> bytes:
        found = hashlib.sha256(f"{name} {kind} {len(seeds[kind])}".encode()).digest()
        seeds[kind].append(found.hex())
        return found

    tag, level, scale = "00112233445566778899aabbccddeeff", 2, 24.5
    slots = (np.arange(ring.slots) * 7919 % 1000) / 1000 - 0.5
    keys = [EvaluationKey("it", ring, *kind) for kind in (("rotation", 3), ("relinearization",), ("conjugation",))]
    keys += [EvaluationKey("it", ring, "encapsulation")] if ring.bootstrap else []
    with mock.patch.multiple(
        cryptors,
        SecretStream=lambda: SecretStream(drawn("secret")),
        fresh_seed=lambda: drawn("sent"),
        # One after the other, so that seeds have their order.
        in_threads=lambda call, count, _: [call(number) for number in range(count)],
    ):
        cryptor = cryptors.Cryptor(ring, tag=tag)
        made = [cryptor.secret_bytes(), cryptor.encrypted_bytes(slots, level, scale)]
        made += [cryptor.evaluation_key_bytes(key) for key in keys]
    fields = {"bootstrap_babies": 0, "bootstrap": None, "short_specials": False} | to_json(ring)
    letters = {"rotation": "a", "conjugation": "a", "relinearization": "r", "encapsulation": "p"}
    asked = [{"kind": letters[key.kind], "index": key.index if letters[key.kind] == "a" else 0} for key in keys]
    values = {"ring": fields, "tag": tag, "seeds": seeds, "keys": asked, "level": level, "scale": scale}
    (tmp_path / "values.json").write_text(json.dumps({"values": values}))
    found = json.loads(_run(HALF, "seeded", tmp_path))
    assert found == [hashlib.sha256(each).hexdigest() for each in made]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, Any]]]:
    pytest.importorskip("fastapi", reason="serving needs the extra `serve`")
    from helpers.serving import Running

    folder = tmp_path_factory.mktemp("artifacts")
    made = {name: PROGRAMS[name]() for name in ("network", "trees")}
    for name, (artifact, _, _) in made.items():
        artifact.save(folder / f"{name}.helio")
    server = Running(folder / "data", [folder / f"{name}.helio" for name in made]).start()
    yield server, made
    assert server.stop() == 0


@pytest.mark.parametrize("name", [pytest.param("network", marks=pytest.mark.front), "trees"])
def test_over_http(name: str, served: tuple[Any, dict[str, Any]], tmp_path: Path) -> None:
    server, made = served
    artifact, values, clear = made[name]
    _given(artifact, values, tmp_path)
    told = json.loads(_run(HALF, "serve", tmp_path, server.url, server.token))
    assert told["outputs"][0]["data"] == pytest.approx(clear, abs=0.02)
    assert told["label"] == int(np.argmax(clear))
    assert told["refused"] == 401
    assert "sending keys" in told["stages"]


def test_steps_over_http(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="serving needs the extra `serve`")
    from helpers.serving import Running

    artifact = hg.compile(hg.parse(COUNTER), Options(security_bits=None, log_ring=11))
    artifact.save(tmp_path / "counter.helio")
    server, total = Running(tmp_path / "data", [tmp_path / "counter.helio"]).start(), np.array([0.1, 0.2, -0.3, 0.4])
    given = [np.array([0.5, -0.5, 0.25, 1.0]), np.array([1.0, 0.0, -1.0, 0.5])]
    values: Any = {"start": {"total": total.tolist()}, "given": [[x.tolist()] for x in given]}
    _given(artifact, values, tmp_path)
    try:
        found = json.loads(_run(HALF, "steps", tmp_path, server.url, server.token))
    finally:
        server.stop()
    for x, (outputs, left) in zip(given, found, strict=True):
        total = total * 0.5 + x * x * 0.25
        assert outputs[0]["data"] == pytest.approx(total, abs=1e-3)
        assert left == pytest.approx(total, abs=1e-3)


def test_certified_answers_are_read_as_in_python(tmp_path: Path) -> None:
    data = (ROOT / "tests" / "vectors" / "bootstrapped.bin").read_bytes()
    part, random = PublicArtifact.from_bytes(data), np.random.default_rng(0)
    values = [np.zeros(3), np.array([0.3, -0.3, 0.2]), np.array([0.0, 0.41, 0.0]), np.array([0.0, np.inf, 0.0])]
    for _ in range(200):
        found = random.normal(0, 0.15, 3)
        found[random.integers(3, size=random.integers(1, 3))] += random.integers(-90, 40)
        values.append(found)
    (tmp_path / "public.bin").write_bytes(data)
    text = json.dumps({"values": [value.tolist() for value in values]}).replace("Infinity", "1e999")
    (tmp_path / "values.json").write_text(text)
    for value, told in zip(values, json.loads(_run(HALF, "answers", tmp_path)), strict=True):
        answer = read_answer(part, value)
        text = str(answer).replace(" for class None", "")
        _same_answer(told, answer, text)


def _same_answer(told: list[Any], answer: hg.Answer, text: str) -> None:
    label, votes, certified, radius, widest, *rest = told
    assert [label, votes, certified, radius] == [answer.label, answer.votes, answer.certified, answer.radius]
    assert widest == pytest.approx(answer.widest_radius, rel=1e-9)
    assert rest == [answer.error, answer.withdrawn, text]


def test_certified_answers_from_end_to_end(tmp_path: Path) -> None:
    """Two classes, that differ in the first of two numbers."""
    pytest.importorskip("torch", reason="certificates need torch")
    random, here = np.random.default_rng(0), Location("model.py", 1, 1, "")
    rows = random.uniform(0, 1, (300, 2))
    rows = rows[np.abs(rows[:, 0] - 0.5) > 0.1]
    builder = Builder("half", Stage.TENSOR)
    builder.calibration = (rows[:100],)
    x = builder.input("x", here, shape=(2,), low=-0.5, high=1.5)
    weight = builder.constant(np.array([[-1.0, 0.0], [1.0, 0.0]]), "fc.weight")
    bias = builder.constant(np.array([0.5, -0.5]), "fc.bias")
    program = builder.finish({"y": builder.op("linear", (x,), here, weight=weight, bias=bias)})
    certificate = hg.Certificate("l2", sigma=0.1, tau=0.7, n=12, n0=4, alpha=0.05, zeta=0.02)
    options = Options(security_bits=None, log_ring=11)
    artifact = hg.certify(program, certificate, held_out=rows[100:], options=options)
    _given(artifact, [[0.7, 0.2]], tmp_path)
    _run(HALF, "make", tmp_path)
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    write_index(tmp_path / "keys", artifact.fingerprint, receipt["client"])
    (tmp_path / "answers").mkdir()
    with hg.Server(artifact, KeyFolder(tmp_path / "keys"), allow_insecure=True) as server:
        inputs = hg.EncryptedInput.load(tmp_path / "input.bin")
        # The same input with more and more noise: certified at first, later not.
        for number, size in enumerate((0.1, 1.0, 2.0, 3.0)):
            noise = {name: size * random.standard_normal(at) for name, (_, at) in artifact.drawn_inputs.items()}
            server.run(inputs, plain=noise).save(tmp_path / "answers" / f"{number}.bin")
    with pytest.warns(hg.errors.InsecureWarning):
        client = hg.Client.load(tmp_path / "client.key", "a passphrase", artifact=artifact, allow_insecure=True)
    answers = [
        client.answer(hg.EncryptedOutput.load(file), of=inputs) for file in sorted((tmp_path / "answers").iterdir())
    ]
    for told, answer in zip(json.loads(_run(HALF, "certified", tmp_path)), answers, strict=True):
        _same_answer(told, answer, str(answer).replace(" for class None", ""))
    assert answers[0].label == 1
    assert answers[0].widest_radius >= answers[0].radius > 0
    assert not all(answer.certified for answer in answers)


def test_shared_results_have_the_same_noise_and_count_on(tmp_path: Path) -> None:
    """Results shared in Python, then in JavaScript, then in Python again, under one key."""
    artifact, values, clear = _network()
    _given(artifact, values, tmp_path)
    client, file = hg.Client(artifact.public(), allow_insecure=True), tmp_path / "client.key"
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        output = server.run(client.encrypt(*map(np.array, values)))
    output.save(tmp_path / "output.bin")
    client.decrypt(output, share=True)
    client.save(file, "a passphrase")
    told = json.loads(_run(HALF, "share", tmp_path))
    # What could not be stored is counted all the same.
    assert told["counts"] == list(range(3, 51))
    assert "key file does not hold this result" in told["refusals"][0]
    assert told["refusals"][1] == "the disk is full"
    std = flooding_std(client.public.predicted["scheme_error"], len(clear))
    noises = np.array(told["noises"])
    assert noises.std() == pytest.approx(std, rel=0.3)
    assert abs(noises.mean()) < 4 * std / np.sqrt(noises.size)
    with pytest.warns(hg.errors.InsecureWarning):
        again = hg.Client.load(file, "a passphrase", allow_insecure=True)
    for _ in range(SHARE_RESULTS - 50):
        again.decrypt(output, share=True)
    with pytest.raises(hg.errors.SecurityError, match="has shared 64 results"):
        again.decrypt(output, share=True)
