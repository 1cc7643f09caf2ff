"""`heliograph certify`: an artifact from a module, answers image by image, the picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.blobs import Blobs

import heliograph as hg
from heliograph.cli.main import cli

MODEL = """
import torch
from heliograph.certified.train import perceptron

def network():
    model = perceptron(8, 4, 3)
    model.load_state_dict(torch.load("weights.pt", weights_only=True))
    return model.eval()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blobs: Blobs, network: hg.Program) -> Path:
    """A folder with a model's file, its weights and inputs."""
    import torch

    monkeypatch.chdir(tmp_path)
    module = hg.to_torch(network)
    names = {"0.weight": "0.weight", "0.bias": "0.bias", "2.weight": "2.weight", "2.bias": "2.bias"}
    state = {new: module.state_dict()[old] for old, new in names.items()}
    constants = {name.rpartition(".")[2]: network.array(name) for name in network.constants if name.startswith("1.")}
    state |= {f"1.{name}": torch.as_tensor(constants[name], dtype=torch.float32) for name in ("scale", "shift")}
    torch.save(state, "weights.pt")
    (tmp_path / "model.py").write_text(MODEL)
    np.save("train.npy", blobs.inputs[:200])
    np.save("test.npy", blobs.inputs[1900:1904])
    np.save("labels.npy", blobs.labels[1900:1904])
    return tmp_path


def test_a_module_is_certified_and_answers(folder: Path, blobs: Blobs) -> None:
    flags = "--sigma 0.1 --tau 0.7 --n 12 --n0 4 --alpha 0.05 --zeta 0.02 --insecure --log-ring 11"
    made = CliRunner().invoke(
        cli,
        f"certify model.py:network --samples train.npy {flags} -o blobs.helio --json".split(),
        catch_exceptions=False,
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["certificate"]["n"] == 12
    words = "certify blobs.helio --input test.npy --labels labels.npy --insecure --plot curve.png"
    answered = CliRunner().invoke(cli, words.split(), catch_exceptions=False)
    assert answered.exit_code == 0, answered.output
    lines = answered.stdout.splitlines()
    assert lines[0].startswith("an l2 radius of 0.0468 where 12 of 12 votes agree")
    assert len([line for line in lines if "class" in line and " s" in line]) == 4
    assert "certified accuracy" in lines[-1]
    assert (folder / "curve.png").stat().st_size > 10_000
    simulated = CliRunner().invoke(
        cli,
        ["certify", "blobs.helio", "--input", "test.npy", "--most", "2", "--simulate", "--json"],
        catch_exceptions=False,
    )
    rows = json.loads(simulated.stdout)["answers"]
    assert [row["class"] for row in rows] == blobs.labels[1900:1902].tolist()


def test_an_artifact_runs_as_any_other(artifact: hg.Artifact, tmp_path: Path, blobs: Blobs) -> None:
    """`heliograph run` draws the noise itself, and gives it to the simulator too."""
    artifact.save(tmp_path / "blobs.helio")
    np.save(tmp_path / "x.npy", blobs.inputs[1900])
    words = ["run", str(tmp_path / "blobs.helio"), "--input", str(tmp_path / "x.npy"), "--insecure", "--json"]
    found = json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)
    # The server's noise is in the answer, not in the simulation.
    assert found["max_abs_error_against_simulation"] < 0.5
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "blobs.helio")], catch_exceptions=False)
    assert "certificate" in shown.stdout


@pytest.mark.front
def test_two_machines_get_the_answer_by_files(artifact: hg.Artifact, folder: Path, blobs: Blobs) -> None:
    """Keys, encryption, evaluation and decryption by command: the client reads class and certificate."""
    artifact.save("blobs.helio")
    artifact.public().save("blobs.public")
    np.save("x.npy", blobs.inputs[1900])
    for words in (
        "keygen blobs.public -o client.key --keys eval.keys --insecure",
        "encrypt client.key x.npy -o x.ct --insecure",
        "evaluate blobs.helio x.ct --keys eval.keys -o y.ct --insecure",
        "decrypt client.key y.ct --of x.ct --insecure --json",
    ):
        found = CliRunner().invoke(cli, words.split(), catch_exceptions=False)
        assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)["answer"]
    assert answer["label"] == blobs.labels[1900]
    assert answer["certified"] == (answer["votes"] == 12)
    assert answer["withdrawn"] == ""


def test_what_is_missing_is_said(folder: Path, artifact: hg.Artifact) -> None:
    from heliograph.cli.main import main

    artifact.save(folder / "blobs.helio")
    for words, what in (
        (["certify", "model.py:network", "--sigma", "0.1", "--tau", "0.7"], "give --samples"),
        (["certify", "blobs.helio", "--plot", "curve.png"], "give --input"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 2, what
