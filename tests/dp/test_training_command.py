"""`heliograph dp train` and `heliograph dp audit`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import commands

MAKE = """
import torch

def make():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(600, 6, generator=generator)
    targets = (inputs[:, 0] > 0).long()
    return torch.nn.Linear(6, 2), (inputs[:500], targets[:500]), (inputs[500:], targets[500:])

def with_loss():
    inputs = torch.linspace(-1, 1, 500)[:, None]
    return torch.nn.Linear(1, 1), (inputs, 3 * inputs), (inputs, 3 * inputs), lambda out, y: (out - y).square().sum(1)

def two():
    return make()[:2]
"""
ARGUMENTS = "--epsilon 2 --delta 1e-5 --epochs 3 --batch-size 50 --lr 0.5 --clip 1 --seed 48151623"
KEYS = [
    "method",
    "accuracy",
    "epsilon_lower",
    "epsilon_upper",
    "delta",
    "steps",
    "noise_multiplier",
    "seconds",
    "secure_noise",
    "releases",
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return commands.run(capsys, "dp", *arguments)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(MAKE)
    return path


@pytest.mark.front
@pytest.mark.parametrize("method", ["dpis", "dp_sgd"])
def test_train_verify_audit(method: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = f"train {file}:make --method {method} {ARGUMENTS} --out {out} --json"
    code, printed, err = run(capsys, *command.split())
    assert code == 0, err
    assert "no guarantee" in err
    values = json.loads(printed)
    assert list(values) == KEYS
    assert values["method"] == method
    assert values["accuracy"] > 0.8
    assert values["epsilon_lower"] is None
    assert values["epsilon_upper"] == 2.0
    assert not values["secure_noise"]
    names = ["name", "mechanism", "count", "sensitivity", "noise_std", "sampling_probability"]
    assert all(list(release) == names for release in values["releases"])
    steps = [release for release in values["releases"] if release["sampling_probability"] is not None]
    assert sum(release["count"] for release in steps) == values["steps"]
    assert sorted(path.name for path in out.iterdir()) == ["model.npz", "report.json", "report.txt", "run.json"]
    assert not any("48151623" in path.read_text() for path in out.glob("*.[jt][sx]*"))
    assert "NO GUARANTEE" in (out / "report.txt").read_text()
    with np.load(out / "model.npz", allow_pickle=False) as model:
        assert model["weight"].shape == (2, 6)
    # The same seed gives the same run.
    again = json.loads(run(capsys, *command.replace(str(out), str(tmp_path / "again")).split())[1])
    assert again | {"seconds": 0} == values | {"seconds": 0}
    code, printed, _ = run(capsys, "verify", str(out / "report.json"))
    assert code == 0
    assert "it stands" in printed
    # The folder holds no seed, so the audit's noise is fresh: at the usual confidence it refutes one honest run in twenty.
    code, printed, err = run(capsys, *f"audit {out} --canaries 40 --confidence 0.999999 --json".split())
    assert code == 0, err
    audit = json.loads(printed)
    assert audit["epsilon_lower_empirical"] <= audit["epsilon_upper"] == 2.0
    assert "proved upper bound" in run(capsys, *f"audit {out} --canaries 40".split())[1]


def test_a_public_size_gives_a_bracket_and_a_fourth_value_the_loss(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = f"train {file}:with_loss --method dp_sgd --public-size 500 {ARGUMENTS} --out {tmp_path / 'o'} --json"
    code, printed, err = run(capsys, *arguments.split())
    assert code == 0, err
    values = json.loads(printed)
    assert 1.998 < values["epsilon_lower"] <= values["epsilon_upper"] <= 2.0
    assert values["accuracy"] is None
    assert values["steps"] == 30


def test_planned_shares_by_epoch(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = f"--method dpis --public-size 500 --planned-norm-share 1,0.6,0.4 {ARGUMENTS} --out {tmp_path / 'o'}"
    code, printed, err = run(capsys, *f"train {file}:make {options} --json".split())
    assert code == 0, err
    values = json.loads(printed)
    assert [release["sampling_probability"] for release in values["releases"]] == pytest.approx([0.1, 1 / 6, 0.25])
    assert 1.99 < values["epsilon_lower"] <= values["epsilon_upper"] <= 2.0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ((":make", ":two"), "did not return"),
        ((":make", ":none"), "defines no 'none'"),
        (("--delta 1e-5", "--delta 0.5"), "delta"),
        (("--epsilon 2", ""), "either epsilon or noise"),
        (("--batch-size 50", "--batch-size 5000"), "batch size"),
        (("--epsilon 2", "--epsilon 1e-9"), "epsilon"),
        (("--clip 1", "--clip 1 --planned-norm-share 1,x"), "not a share"),
        (("--clip 1", "--clip 1 --planned-norm-share 1,0.5"), "2 planned shares for 3 epochs"),
    ],
)
def test_refusals(
    change: tuple[str, str], text: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"train {file}:make {ARGUMENTS} --out {tmp_path / 'out'}".replace(*change)
    code, _, err = run(capsys, *command.split())
    assert code == 2
    assert text in err
    assert "Traceback" not in err


def test_audit_refuses_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "audit", str(tmp_path))
    assert code == 2
    assert "no run" in err


@pytest.mark.parametrize("how", ["--sampler fixed_size", "--sampler allocation", "--most 120"])
def test_train_with_a_sampler(how: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = "--method dp_sgd --noise 4 --delta 1e-4 --epochs 1 --batch-size 50 --lr 0.5 --clip 1 --public-size 500"
    code, printed, err = run(capsys, *f"train {file}:make {options} {how} --out {out} --json --quiet".split())
    assert code == 0, err
    kinds = {"--most": "truncated_gaussian"}
    expected = kinds.get(how.split()[0]) or how.split()[1].replace("allocation", "allocated") + "_gaussian"
    assert [release["mechanism"].split("(")[0] for release in json.loads(printed)["releases"]] == [expected]
    assert run(capsys, "verify", str(out / "report.json"))[0] == 0
    assert run(capsys, *f"train {file}:make {options} --sampler allocation --most 9 --out {out}".split())[0] != 0


def test_shuffle_prints_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed, _ = run(capsys, *["shuffle", "--batches", "100", "--noise", "1.0", "--delta", "1e-5"])
    assert code == 0
    assert "at least 4.06" in printed
    assert "not a bound for shuffled batches" in printed
    values = json.loads(run(capsys, *["shuffle", "--batches", "100", "--noise", "1.0", "--delta", "1e-5", "--json"])[1])
    assert values["epsilon_lower"] > 5 * values["poisson"]["upper"]


def test_noise_for_replaced_records(capsys: pytest.CaptureFixture[str]) -> None:
    command = "noise --steps 10 --epsilon 2 --delta 1e-5 --json"
    plain, replaced = (json.loads(run(capsys, *f"{command} {how}".split())[1]) for how in ("", "--neighbors replace"))
    assert replaced["noise_multiplier"] == pytest.approx(2 * plain["noise_multiplier"], rel=1e-3)
