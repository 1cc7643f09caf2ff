"""Many inputs in one folder: a kill in the middle loses nothing that was finished, and other plain inputs keep nothing."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import heliograph as hg
from heliograph.errors import ProgramError, WireError
from heliograph.runtime.server.batch import evaluate_files

SOURCE = """program weighted
input x: secret slots[8] in [-1, 1]
input w: plain slots[8] in [0, 1]
output y = x * x - rotate(x, 3) * w
"""
NAMES = ("0.ct", "1.ct", "2.ct")
WEIGHTS = np.linspace(0, 1, 8)
_EVALUATE = """
    import sys, time
    from pathlib import Path
    import numpy as np
    from heliograph.artifact.artifact import Artifact
    from heliograph.runtime.server.batch import evaluate_files
    from heliograph.runtime.wire.messages import EvaluationKeys
    from heliograph.runtime.server.server import Server
    folder = Path(sys.argv[1])
    done = []
    def progress(stage, number, total):
        if done and number > total // 2:
            print("in the middle of the second", flush=True)
            time.sleep(60)
    def finished(path, seconds):
        done.append(path)
        print(path.name, flush=True)
    with Server(Artifact.load(folder / "artifact"), EvaluationKeys.load(folder / "keys"), allow_insecure=True) as server:
        evaluate_files(
            server,
            [folder / name for name in sys.argv[2:]],
            folder / "outputs",
            plain={"w": np.linspace(0, 1, 8)},
            progress=progress,
            finished=finished,
        )
"""


@pytest.fixture(scope="module")
def artifact() -> hg.Artifact:
    return hg.compile(hg.parse(SOURCE), hg.Options(security_bits=None))


@pytest.fixture(scope="module")
def client(artifact: hg.Artifact) -> hg.Client:
    return hg.Client(artifact, allow_insecure=True)


@pytest.fixture(scope="module")
def keys(client: hg.Client) -> hg.EvaluationKeys:
    return client.evaluation_keys()


@pytest.fixture(scope="module")
def server(artifact: hg.Artifact, keys: hg.EvaluationKeys) -> Iterator[hg.Server]:
    with hg.Server(artifact, keys, allow_insecure=True) as server:
        yield server


@pytest.fixture
def inputs(client: hg.Client, tmp_path: Path) -> list[Path]:
    for number, name in enumerate(NAMES):
        client.encrypt(sample(number)).save(tmp_path / name)
    return [tmp_path / name for name in NAMES]


def sample(number: int) -> np.ndarray:
    return np.random.default_rng(number).uniform(-1, 1, 8)


def evaluate(server: hg.Server, inputs: list[Path], weights: object) -> list[str]:
    """The names of the outputs that were made, and not kept."""
    made: list[str] = []
    evaluate_files(
        server,
        inputs,
        inputs[0].parent / "outputs",
        plain={"w": weights},
        finished=lambda path, seconds: made.append(path.name) if seconds is not None else None,
    )
    return made


def check(client: hg.Client, folder: Path, weights: np.ndarray) -> None:
    for number, name in enumerate(NAMES):
        x = sample(number)
        expected = x * x - np.roll(x, -3) * weights
        found = client.decrypt(hg.EncryptedOutput.load(folder / "outputs" / name))
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_kill_in_the_middle_keeps_what_was_finished(
    artifact: hg.Artifact,
    client: hg.Client,
    keys: hg.EvaluationKeys,
    server: hg.Server,
    inputs: list[Path],
    tmp_path: Path,
) -> None:
    artifact.save(tmp_path / "artifact")
    keys.save(tmp_path / "keys")
    command = [sys.executable, "-c", textwrap.dedent(_EVALUATE), str(tmp_path), *NAMES]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    shown = [process.stdout.readline().strip() for _ in range(2)]
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert shown == ["0.ct", "in the middle of the second"]
    first = tmp_path / "outputs" / "0.ct"
    assert [path.name for path in (tmp_path / "outputs").glob("*.ct")] == ["0.ct"]
    before = first.stat().st_mtime_ns
    assert evaluate(server, inputs, WEIGHTS) == ["1.ct", "2.ct"]
    assert first.stat().st_mtime_ns == before
    check(client, tmp_path, WEIGHTS)


def test_outputs_of_other_plain_inputs_are_made_again(
    client: hg.Client, server: hg.Server, inputs: list[Path], tmp_path: Path
) -> None:
    outputs = tmp_path / "outputs"
    assert evaluate(server, inputs[:2], WEIGHTS) == [*NAMES[:2]]
    assert evaluate(server, inputs, WEIGHTS) == ["2.ct"]
    assert evaluate(server, inputs, WEIGHTS.tolist()) == []
    check(client, tmp_path, WEIGHTS)
    # Stopped after the first of other values: the mixture is told apart both ways.
    assert evaluate(server, inputs[:1], WEIGHTS / 2) == ["0.ct"]
    old = (outputs / ".1.ct.made").read_bytes()
    assert evaluate(server, inputs, WEIGHTS) == ["0.ct"]
    assert evaluate(server, inputs, WEIGHTS / 2) == [*NAMES]
    check(client, tmp_path, WEIGHTS / 2)
    assert evaluate(server, inputs, WEIGHTS / 2) == []
    # A kill between an output and its mark leaves none, or that of the output before.
    mark = outputs / ".1.ct.made"
    mark.unlink()
    assert evaluate(server, inputs, WEIGHTS / 2) == ["1.ct"]
    assert stat.S_IMODE(mark.stat().st_mode) == 0o600
    mark.write_bytes(old)
    assert evaluate(server, inputs[1:2], WEIGHTS) == ["1.ct"]
    with pytest.raises(ProgramError, match="plain inputs are 'w'"):
        evaluate_files(server, inputs, outputs)


def test_another_input_under_an_old_name_and_time_is_evaluated(
    client: hg.Client, server: hg.Server, inputs: list[Path], tmp_path: Path
) -> None:
    """`mv`, `cp -p`, `rsync -t` and `unzip` keep the time of a file."""
    assert evaluate(server, inputs, WEIGHTS) == [*NAMES]
    other = tmp_path / "yesterday"
    client.encrypt(sample(7)).save(other)
    os.utime(other, (1e9, 1e9))
    os.replace(other, inputs[1])
    assert evaluate(server, inputs, WEIGHTS) == ["1.ct"]
    found = client.decrypt(hg.EncryptedOutput.load(tmp_path / "outputs" / "1.ct"))
    np.testing.assert_allclose(found, sample(7) ** 2 - np.roll(sample(7), -3) * WEIGHTS, atol=1e-4)
    # An input that was only copied is the same one, whatever its time.
    os.utime(inputs[0])
    assert evaluate(server, inputs, WEIGHTS) == []
    # An answer that was put in the place of another.
    outputs = tmp_path / "outputs"
    os.replace(outputs / "0.ct", outputs / "2.ct")
    os.replace(outputs / ".0.ct.made", outputs / ".2.ct.made")
    assert evaluate(server, inputs, WEIGHTS) == ["0.ct", "2.ct"]
    # The same request with other ciphertexts.
    first = hg.EncryptedInput.load(inputs[0])
    forged = client.encrypt(sample(9))
    hg.EncryptedInput(first.artifact, first.client, blobs=forged.blobs, request=first.request).save(inputs[0])
    assert evaluate(server, inputs, WEIGHTS) == ["0.ct"]


def test_outputs_without_plain_inputs_have_marks_too(tmp_path: Path) -> None:
    source = "program squared\ninput x: secret slots[8] in [-1, 1]\noutput y = x * x\n"
    artifact = hg.compile(hg.parse(source), hg.Options(security_bits=None))
    client = hg.Client(artifact, allow_insecure=True)
    kept: list[bool] = []
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        for number, new in ((1, True), (1, False), (2, True)):
            if new:
                client.encrypt(sample(number)).save(tmp_path / "x.ct")
                os.utime(tmp_path / "x.ct", (1e9, 1e9))
            (made,) = evaluate_files(
                server, [tmp_path / "x.ct"], tmp_path / "out", finished=lambda _, seconds: kept.append(seconds is None)
            )
            found = client.decrypt(hg.EncryptedOutput.load(made), of=hg.EncryptedInput.load(tmp_path / "x.ct"))
            np.testing.assert_allclose(found, sample(number) ** 2, atol=1e-4)
    assert kept == [False, True, False]
    assert stat.S_IMODE((tmp_path / "out" / ".x.ct.made").stat().st_mode) == 0o600


def test_a_client_notices_the_answer_to_another_question(client: hg.Client, server: hg.Server) -> None:
    first, second = client.encrypt(sample(1)), client.encrypt(sample(1))
    assert first.request != second.request
    answer = server.run(hg.EncryptedInput.from_bytes(first.to_bytes()), plain={"w": WEIGHTS})
    answer = hg.EncryptedOutput.from_bytes(answer.to_bytes())
    for asked in (first, first.request):
        np.testing.assert_allclose(client.decrypt(answer, of=asked), client.decrypt(answer), atol=1e-9)
    for other in (second, second.request):
        with pytest.raises(WireError, match=f"answer to other inputs(?s:.*){first.request[:12]}"):
            client.decrypt(answer, of=other)
