"""Programs with inputs of the server, and programs that carry values from run to run, over HTTP."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.serving import Running

import heliograph as hg
from heliograph.errors import ProgramError, WireError
from heliograph.runtime.server.steps import StepInput, StepOutput
from heliograph.serving.queue.catalog import Catalog
from heliograph.serving.queue.settings import Places
from heliograph.serving.remote.records import ErrorRecord
from heliograph.serving.work.engine import Work
from heliograph.serving.work.evaluation import Evaluation

WEIGHTED = """program weighted
input x: secret slots[8] in [-1, 1]
input w: plain slots[8] in [0, 1]
output y = x * x - rotate(x, 3) * w
"""
COUNTER = """program counter
input x: secret tensor[4] in [-1, 1]
input total: carried tensor[4] in [-1, 1]
input share: plain tensor[] in [0, 1]
seen = total * 0.5 + x * x * share
output seen
output total = seen
"""
PRICED = """program priced
input x: secret tensor[4] in [-1, 1]
input rates: plain tensor[4] in [-1, 1]
output y = x * rates
"""
PROGRAMS = {"weighted": WEIGHTED, "counter": COUNTER, "priced": PRICED}
TREES = Path(__file__).parents[1] / "frontends/trees_models/xgboost-binary.json"
W, X = np.linspace(0, 1, 8), np.linspace(-1, 1, 8)
START, GIVEN, SHARE = np.array([0.1, 0.2, -0.3, 0.4]), np.array([0.5, -0.5, 0.25, 1.0]), 0.25


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        hg.compile(hg.parse(text), hg.Options(security_bits=None, log_ring=11)).save(made / f"{name}.helio")
    with np.load(TREES.with_suffix(".answers.npz")) as known:
        trees = hg.from_trees(TREES, known["samples"], binned=True, name="trees")
    hg.compile(trees, hg.Options(security_bits=None, log_ring=11)).save(made / "trees.helio")
    np.savez(made / "weighted.npz", w=W)
    np.savez(made / "counter.npz", share=SHARE)
    np.savez(made / "priced.npz", rates=W[:4])
    return made


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Running]:
    plain = [each for name in PROGRAMS for each in ("--plain", f"{name}={folder / name}.npz")]
    server = Running(folder / "data", [folder / f"{name}.helio" for name in (*PROGRAMS, "trees")], *plain).start()
    yield server
    assert server.stop() == 0


@pytest.fixture
def remote(served: Running) -> Iterator[hg.RemoteServer]:
    with hg.RemoteServer(served.url, served.token, patience_s=60) as made:
        yield made


@pytest.fixture(scope="module")
def counter(folder: Path, served: Running) -> hg.Client:
    """A client of the program that carries, whose keys are registered."""
    with hg.RemoteServer(served.url, served.token) as made:
        client = hg.Client(made.public("counter"), allow_insecure=True)
        made.register(client.evaluation_keys())
    return client


def after(total: np.ndarray) -> np.ndarray:
    return np.asarray(total * 0.5 + GIVEN * GIVEN * SHARE)


def test_a_program_without_evaluation_keys_is_served(remote: hg.RemoteServer, served: Running) -> None:
    client = hg.Client(remote.public("priced"), allow_insecure=True)
    keys = client.evaluation_keys()
    assert keys.names() == []
    remote.register(keys)
    np.testing.assert_allclose(client.decrypt(remote.run(client.encrypt(GIVEN))), GIVEN * W[:4], atol=1e-4)
    # Keys are for nobody but the server, those that are none too.
    assert {folder.stat().st_mode & 0o777 for folder in served.places.keys.iterdir()} == {0o700}


def test_rows_that_clients_encode(remote: hg.RemoteServer) -> None:
    with np.load(TREES.with_suffix(".answers.npz")) as known:
        samples, predictions = known["samples"][:3].astype(float), known["predictions"][:3]
    client = hg.Client(remote.public("trees"), allow_insecure=True)
    remote.register(client.evaluation_keys())
    for row, wanted in zip(samples, predictions, strict=True):
        np.testing.assert_allclose(client.decrypt(remote.run(client.encrypt(row)))[-1], np.ravel(wanted)[-1], atol=1e-3)


def test_plain_inputs_are_the_operators(remote: hg.RemoteServer) -> None:
    client = hg.Client(remote.public("weighted"), allow_insecure=True)
    remote.register(client.evaluation_keys())
    answer = client.decrypt(remote.run(client.encrypt(X)))
    np.testing.assert_allclose(answer, X * X - np.roll(X, -3) * W, atol=1e-4)


@pytest.mark.parametrize(
    ("values", "said"),
    [({}, "takes plain inputs"), ({"w": np.zeros(5)}, "shape"), ({"w": np.full(8, 2.0)}, "range"), ({"v": W}, "'w'")],
)
def test_plain_inputs_are_looked_at_before_anything_is_served(
    folder: Path, tmp_path: Path, values: dict[str, np.ndarray], said: str
) -> None:
    # A single array needs no name; so two of them, for the case of a wrong name.
    np.savez(tmp_path / "w.npz", **values, **({"u": W} if "v" in values else {}))
    plain = {"weighted": str(tmp_path / "w.npz")} if values else {}
    with pytest.raises((ProgramError, hg.RangeError), match=said):
        Catalog([folder / "weighted.helio"], 1 << 31, plain=plain, allow_insecure=True)


def test_errors_of_jobs_do_not_name_the_operators_files(remote: hg.RemoteServer, served: Running, folder: Path) -> None:
    """The client hears that they cannot be read, the operator's log says which, and why."""
    client = hg.Client(remote.public("weighted"), allow_insecure=True)
    remote.register(client.evaluation_keys())
    path, away = folder / "weighted.npz", folder / "away.npz"
    path.rename(away)
    try:
        with pytest.raises(hg.HeliographError, match="the server's own inputs cannot be read") as caught:
            remote.run(client.encrypt(X))
        for values in (np.full(8, 123.456), np.zeros(5)):
            np.savez(path, w=values)
            with pytest.raises(hg.HeliographError, match="the server's own inputs cannot be read") as other:
                remote.run(client.encrypt(X))
            assert str(other.value) != ""
            assert (other.value.what, other.value.why) == (caught.value.what, caught.value.why)
    finally:
        away.replace(path)
    assert str(folder) not in str(caught.value)
    assert "weighted" not in str(caught.value)
    faults = [str(line["text"]) for line in served.events("fault")]
    assert f"{path} cannot be read" in faults[-3]
    assert "outside its range" in faults[-2]
    assert "shape" in faults[-1]
    client.decrypt(remote.run(client.encrypt(X)))


@pytest.mark.parametrize("change", ["gone", "another", "damaged", "a folder"])
def test_artifacts_that_were_replaced_are_not_named(folder: Path, tmp_path: Path, change: str) -> None:
    path = tmp_path / "secret_folder" / "counted.helio"
    path.parent.mkdir()
    artifact = hg.Artifact.load(folder / "weighted.helio")
    artifact.save(path)
    evaluation = Evaluation(Work(str(tmp_path), {artifact.fingerprint: str(path)}, {}, 1 << 31, allow_insecure=True))
    path.unlink()
    if change == "another":
        hg.Artifact.load(folder / "counter.helio").save(path)
    elif change == "damaged":
        path.write_bytes(b"junk")
    elif change == "a folder":
        path.mkdir()
    report = evaluation.run(artifact.fingerprint, tmp_path / "keys", b"", lambda _: None)
    assert report.error == ErrorRecord(
        "HeliographError", "the server's own inputs cannot be read", hint="the operator's log says more"
    )
    assert str(path) in report.fault


def test_whole_paths_are_taken_out_of_errors(tmp_path: Path) -> None:
    """Whatever raised them; of the server's own folder it is what a client sent."""
    places = Places(tmp_path / "data")
    said = f"{tmp_path}/data/inputs/ab12: cut. /srv/models/rates.npy cannot be read (/srv/models). rotation/1 and 1/2"
    assert places.hidden(said) == (
        "what was sent: cut. a file of the server cannot be read (a file of the server). rotation/1 and 1/2"
    )
    for text in ("see https://example.org/a/b and model.py:3", "wait for it: GET /v1/jobs/ID?wait=20"):
        assert places.hidden(text) == text


def test_steps_go_on_from_each_other(remote: hg.RemoteServer, counter: hg.Client, tmp_path: Path) -> None:
    """What is carried goes through a file between two of them; the answers are those of a server without HTTP."""
    total, carried = START, counter.encrypt_carried(total=START)
    for number in range(3):
        encrypted = counter.encrypt(GIVEN)
        output, carried = remote.step(encrypted, carried)
        total = after(total)
        np.testing.assert_allclose(counter.decrypt(output, of=encrypted), total, atol=1e-4)
        np.testing.assert_allclose(counter.decrypt_carried(carried)["total"], total, atol=1e-4)
        if number == 0:
            carried.save(tmp_path / "carried")
            carried = hg.CarriedValues.load(tmp_path / "carried")


@pytest.mark.front
def test_a_step_survives_kills_and_is_taken_up(served: Running, counter: hg.Client) -> None:
    """The server is killed when the step is accepted, and its client is another process: the same job, the same answer."""
    encrypted, carried = counter.encrypt(GIVEN), counter.encrypt_carried(total=START)
    step = StepInput.of(encrypted, carried)
    with hg.RemoteServer(served.url, served.token, patience_s=60) as first:
        job = first._submitted(step, None)
    served.kill()
    served.start()
    with hg.RemoteServer(served.url, served.token, patience_s=60) as second:
        output, left = second.step(encrypted, carried)
        assert job == encrypted.request == output.request
        np.testing.assert_allclose(counter.decrypt_carried(left)["total"], after(START), atol=1e-4)
        # A worker that is killed in between matters no more.
        os.kill(served.workers()[-1], signal.SIGKILL)
        time.sleep(0.1)
        output, left = second.step(counter.encrypt(GIVEN), left)
        np.testing.assert_allclose(counter.decrypt(output), after(after(START)), atol=1e-4)


def test_what_is_no_step_is_refused(remote: hg.RemoteServer, served: Running, counter: hg.Client) -> None:
    encrypted, carried = counter.encrypt(GIVEN), counter.encrypt_carried(total=START)
    faults = served.events("fault")
    with pytest.raises(WireError, match="holds: encrypted inputs; expected: inputs of a step"):
        remote.run(encrypted)
    other = hg.Client(remote.public("counter"), allow_insecure=True)
    with pytest.raises(WireError, match="another client"):
        remote.step(encrypted, other.encrypt_carried(total=START))
    with pytest.raises(hg.HeliographError, match="keys of this client are not registered"):
        remote.step(other.encrypt(GIVEN), other.encrypt_carried(total=START))
    # The right objects under another's name; a carried value too few.
    swapped = StepInput(encrypted.artifact, encrypted.client, {"given/x/0": carried.blob("total/0")})
    with pytest.raises(WireError):
        remote._result(remote._submitted(swapped, None), StepOutput, None)
    lacking = StepInput(encrypted.artifact, encrypted.client, {"given/x/0": encrypted.blob("x/0")})
    with pytest.raises(WireError, match="lack total/0"):
        remote._result(remote._submitted(lacking, None), StepOutput, None)
    strange = StepInput(encrypted.artifact, encrypted.client, {"x/0": encrypted.blob("x/0")})
    with pytest.raises(WireError, match="neither"):
        remote._result(remote._submitted(strange, None), StepOutput, None)
    # Afterwards it serves as before.
    np.testing.assert_allclose(counter.decrypt(remote.step(encrypted, carried)[0]), after(START), atol=1e-4)
    assert served.events("fault") == faults
