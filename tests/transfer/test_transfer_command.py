"""`heliograph transfer`: train, resume and evaluate, and the features of a network."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import run, run_json
from helpers.trainings import TOY, blobs
from torch import nn

from heliograph.transfer.data import TransferData, load_test
from heliograph.transfer.features import features
from heliograph.transfer.local import prepare
from heliograph.transfer.settings import TransferSettings

OPTIONS = [
    "--minibatch",
    "32",
    "--rate",
    "2",
    "--logit-range",
    "8",
    "--weight-range",
    "4",
    "--insecure",
    "--log-ring",
    "10",
]


@pytest.fixture(scope="module")
def npz(tmp_path_factory: pytest.TempPathFactory, blobs_data: TransferData) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.npz"
    x, y = blobs(100, 3)
    np.savez(
        path,
        x_train=blobs_data.x_train,
        y_train=blobs_data.y_train,
        x_val=blobs_data.x_val,
        y_val=blobs_data.y_val,
        x_test=x,
        y_test=y,
    )
    return path


def test_a_training_is_begun_gone_on_with_and_looked_at(
    npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "t")
    begun = ["transfer", "train", str(npz), "--folder", folder, *OPTIONS, "--most-epochs", "1", "--json"]
    code, out, err = run(capsys, *begun)
    assert code == 0, err
    values = json.loads(out)
    assert values["best"] == 1
    assert values["epochs"][0]["accuracy"] > 0.8
    assert "epoch 1: loss" in err
    again = run_json(capsys, "transfer", "resume", folder, str(npz), "--insecure")
    assert again["epochs"] == values["epochs"]
    assert run_json(capsys, "transfer", "evaluate", folder, str(npz))["accuracy"] > 0.8


@pytest.mark.front
def test_a_simulated_training_needs_no_keys(npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulated = [str(npz), "--folder", str(tmp_path / "t"), *OPTIONS, "--most-epochs", "2", "--simulate"]
    code, out, err = run(capsys, "transfer", "train", *simulated)
    assert code == 0, err
    assert "stopped after epoch 2: it was to end after 2 epochs" in out
    assert not (tmp_path / "t" / "trainer" / "keys").exists()


def test_fixed_epochs_are_all_trained(npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the loss rises, too: without the option a patience of one would end it."""
    with np.load(npz) as file:
        path = _changed(npz, tmp_path / "wrong.npz", y_val=(file["y_val"] + 1) % 3)
    told = {}
    for name, more in (("fixed", ["--fixed-epochs"]), ("usual", [])):
        given = [
            path,
            "--folder",
            str(tmp_path / name),
            *OPTIONS,
            "--most-epochs",
            "3",
            "--patience",
            "1",
            "--simulate",
        ]
        told[name] = run_json(capsys, "transfer", "train", *given, *more)
    assert [len(told[name]["epochs"]) for name in ("fixed", "usual")] == [3, 2]
    assert told["fixed"]["best"] == told["usual"]["best"] == 1


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["train", "nothing.npz", "--folder", "t"], "no data to train on"),
        (["resume", "nowhere", "data"], "has no training"),
        (["evaluate", "nowhere", "data"], "has no weights yet"),
    ],
)
def test_what_is_missing_is_named(
    arguments: list[str], wrong: str, npz: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "transfer", *(str(npz) if each == "data" else each for each in arguments))
    assert code != 0
    assert wrong in err


def test_a_training_that_ended_in_its_first_epoch_is_told(
    npz: Path,
    tmp_path: Path,
    blobs_data: TransferData,
    settings: TransferSettings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(tmp_path, blobs_data, settings, TOY)
    (tmp_path / "owner" / "history.json").write_text('{"epochs": [], "stopped": "a logit left [-8, 8]"}')
    code, _, err = run(capsys, "transfer", "resume", str(tmp_path), str(npz))
    assert code == 2
    assert "ended in its first epoch" in err
    assert "a logit left [-8, 8]" in err


def _changed(npz: Path, path: Path, **change: object) -> str:
    with np.load(npz) as file:
        np.savez(path, **{**dict(file), **change})  # type: ignore[arg-type]
    return str(path)


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"x_train": np.array([{}] * 128)}, "real numbers are needed"),
        ({"y_train": np.full(128, 0.5)}, "labels are not whole numbers"),
        ({"y_train": np.full(128, 2**63, dtype=np.uint64)}, "labels are not whole numbers"),
        ({"y_train": np.full(128, 10**12)}, "number the classes from 0"),
        ({"x_val": np.float64(1.0)}, "do not fit"),
    ],
)
def test_hostile_data_are_refused_in_words(
    change: dict[str, object], wrong: str, npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _changed(npz, tmp_path / "hostile.npz", **change)
    code, _, err = run(capsys, "transfer", "train", path, "--folder", str(tmp_path / "t"), *OPTIONS)
    assert code == 2
    assert wrong in err


def test_other_arrays_in_the_file_may_hold_anything(npz: Path, tmp_path: Path) -> None:
    path = _changed(npz, tmp_path / "more.npz", label_names=np.array(["one", "two"]), notes=np.array([{}]))
    found, wanted = TransferData.load(path), TransferData.load(npz)
    assert np.array_equal(found.x_train, wanted.x_train)
    assert np.array_equal(found.y_val, wanted.y_val)
    assert len(load_test(path)[1]) == 100


@pytest.mark.parametrize("cut", [10, 400, -200])
def test_files_that_are_cut_off_are_refused_in_words(
    cut: int, npz: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cut.npz"
    path.write_bytes(npz.read_bytes()[:cut])
    for command in (["train", str(path), "--folder", str(tmp_path / "t")], ["evaluate", str(tmp_path), str(path)]):
        code, _, err = run(capsys, "transfer", *command)
        assert code == 2
        assert "cut.npz" in err
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("weights", "change", "wrong"),
    [
        (np.zeros((3, 7)), {"x_test": np.zeros((4, 5)), "y_test": np.zeros(4, dtype=int)}, "have 5 features"),
        (np.zeros((3, 7)), {"y_test": np.zeros(4)}, "do not fit"),
        (np.zeros((3, 7)), {"y_test": np.full(100, 0.5)}, "labels are not whole numbers"),
        (np.zeros(7), {}, "does not hold the weights"),
        (np.full((3, 7), np.nan), {}, "does not hold the weights"),
        (np.array([{}]), {}, "real numbers are needed"),
    ],
)
def test_hostile_files_are_not_evaluated(
    weights: object,
    change: dict[str, object],
    wrong: str,
    npz: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "owner").mkdir()
    np.save(tmp_path / "owner" / "weights.npy", weights)  # type: ignore[arg-type]
    path = _changed(npz, tmp_path / "hostile.npz", **change)
    code, _, err = run(capsys, "transfer", "evaluate", str(tmp_path), path)
    assert code == 2
    assert wrong in err


def test_features_are_those_of_the_network_in_evaluation_mode() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5))
    x = np.random.default_rng(0).normal(size=(5, 3))
    made = features(network, x, batch=2)
    with torch.no_grad():
        wanted = network[0](torch.from_numpy(x).float()).double().numpy()
    assert made == pytest.approx(wanted / np.linalg.norm(wanted, axis=1, keepdims=True), abs=1e-6)
    assert network.training
    assert features(network, x, unit=False) == pytest.approx(wanted, abs=1e-6)
